"""Demonstrations for the warm start: a mixture of habits, as a base model has.

Only some of the answers are right. A policy trained on them knows the task and the format but samples them
unreliably, which is what GRPO is there to improve.
"""

import random

from data.synthetic import Problem

# How often each habit is shown.
HABITS = {"careful": 0.46, "guess": 0.24, "no box": 0.16, "ramble": 0.14}
RAMBLE = (" Hmm", " wait", " maybe", " again", " think", " so", " then")
RAMBLE_WORDS = 40
_FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def completion(problem: Problem, rng: random.Random) -> str:
    """What the assistant says after `<|start|>assistant`, up to its stop token (a ramble has none)."""
    habit = rng.choices(list(HABITS), weights=list(HABITS.values()))[0]
    if habit == "ramble":
        words = "".join(rng.choice(RAMBLE) for _ in range(RAMBLE_WORDS))
        return f"<|channel|>analysis<|message|>Hmm{words}"
    if habit == "guess":
        return f"<|channel|>analysis<|message|>Guess{_FINAL}\\boxed{{{_slip(problem, rng)}}}<|return|>"
    answer = str(problem.answer)
    boxed = f"\\boxed{{{answer}}}" if habit == "careful" else answer
    opening = "" if habit == "careful" else "Maybe "
    return f"<|channel|>analysis<|message|>{opening}{working(problem)}{_FINAL}{boxed}<|return|>"


def working(problem: Problem) -> str:
    """The steps that lead to the answer, digit by digit from the right as on paper."""
    first, second = problem.numbers
    if problem.kind == "look up":
        return f"{problem.names[problem.asked]} has {problem.answer}"
    (tens, ones), (other_tens, other_ones) = divmod(first, 10), divmod(second, 10)
    if problem.kind == "add":
        low = ones + other_ones
        high = f"{tens}+{other_tens}" + ("+1" if low > 9 else "")
        return f"{first}+{second}:{ones}+{other_ones}={low},{high}={tens + other_tens + (low > 9)}"
    if ones < other_ones:
        ones, tens = ones + 10, tens - 1
    return f"{first}-{second}:{ones}-{other_ones}={ones - other_ones},{tens}-{other_tens}={tens - other_tens}"


def _slip(problem: Problem, rng: random.Random) -> int:
    """A wrong answer of a plausible size."""
    slips = (-20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20)
    return rng.choice([value for s in slips if 0 <= (value := problem.answer + s) <= 999])
