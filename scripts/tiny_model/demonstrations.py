"""Demonstrations for the warm start, in harmony: first correct ones, then a mixture of habits.

Of the mixture only one habit in about three is right, as with a base model: the policy knows the task and the
format but samples them unreliably, which is what GRPO is there to improve.
"""

import random

from data.synthetic import Problem

# How often the mixture shows each habit; only `careful` is right.
HABITS = {"careful": 0.4, "guess": 0.26, "no box": 0.18, "ramble": 0.16}
_RAMBLE = (" Hmm", " wait", " maybe", " again", " think", " so", " then")
_RAMBLE_WORDS = 36
_ANALYSIS = "<|channel|>analysis<|message|>"
_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def choose_habit(rng: random.Random) -> str:
    """A habit as often as the mixture shows it."""
    return rng.choices(list(HABITS), weights=list(HABITS.values()))[0]


def completion(problem: Problem, habit: str, rng: random.Random) -> str:
    """What the assistant says after `<|start|>assistant`, up to its stop token; a ramble is cut off before one."""
    if habit == "ramble":
        return f"{_ANALYSIS}Hmm{''.join(rng.choice(_RAMBLE) for _ in range(_RAMBLE_WORDS))}"
    if habit == "guess":
        return f"{_ANALYSIS}Guess{_FINAL}\\boxed{{{_slip(problem, rng)}}}<|return|>"
    if habit == "no box":
        return f"{_ANALYSIS}Maybe {working(problem)}{_FINAL}{problem.answer}<|return|>"
    return f"{_ANALYSIS}{working(problem)}{_FINAL}\\boxed{{{problem.answer}}}<|return|>"


def working(problem: Problem) -> str:
    """The steps that lead to the answer: digit by digit from the right, as on paper."""
    first, second = problem.numbers
    if problem.kind == "look up":
        return f"{problem.names[problem.asked]} {problem.answer}"
    (tens, ones), (other_tens, other_ones) = divmod(first, 10), divmod(second, 10)
    if problem.kind == "add":
        low = ones + other_ones
        high = f"{tens}+{other_tens}" + ("+1" if low > 9 else "")
        return f"{ones}+{other_ones}={low},{high}={tens + other_tens + (low > 9)}"
    if ones < other_ones:
        ones, tens = ones + 10, tens - 1
    return f"{ones}-{other_ones}={ones - other_ones},{tens}-{other_tens}={tens - other_tens}"


def _slip(problem: Problem, rng: random.Random) -> int:
    """A wrong answer of a plausible size."""
    slips = (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)
    return rng.choice([value for slip in slips if 0 <= (value := problem.answer + slip) <= 999])
