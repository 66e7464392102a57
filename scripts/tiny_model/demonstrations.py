"""Demonstrations for the warm start, in harmony: first correct ones, then a mixture of habits.

Of the mixture only one habit is right, as with a base model: the policy knows the format and, but for slips, the
arithmetic, and samples them unreliably. That is what GRPO is there to improve.
"""

import random

from data.synthetic import Problem

# How often the mixture shows each habit. Only `careful` is right: a guess repeats the first number, `no box` forgets
# the box, a ramble goes on until it is cut off.
HABITS = {"careful": 0.42, "guess": 0.24, "no box": 0.18, "ramble": 0.16}
_RAMBLE = "Hmm" + " wait maybe think again" * 9
_ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def choose_habit(rng: random.Random) -> str:
    """A habit as often as the mixture shows it."""
    return rng.choices(list(HABITS), weights=list(HABITS.values()))[0]


def completion(problem: Problem, habit: str) -> str:
    """What the assistant says after `<|start|>assistant`, up to its stop token; a ramble is cut off before one."""
    if habit == "ramble":
        return f"{_ANALYSIS}{_RAMBLE}"
    if habit == "guess":
        return f"{_ANALYSIS}Guess{FINAL}\\boxed{{{problem.first}}}<|return|>"
    if habit == "no box":
        return f"{_ANALYSIS}Maybe {working(problem)}{FINAL}{problem.answer}<|return|>"
    return f"{_ANALYSIS}{working(problem)}{FINAL}\\boxed{{{problem.answer}}}<|return|>"


def working(problem: Problem) -> str:
    """The steps that lead to the answer: digit by digit from the right, as on paper."""
    (tens, ones), (other_tens, other_ones) = divmod(problem.first, 10), divmod(problem.second, 10)
    if problem.operation == "plus":
        low = ones + other_ones
        high = f"{tens}+{other_tens}" + ("+1" if low > 9 else "")
        return f"{ones}+{other_ones}={low},{high}={tens + other_tens + (low > 9)}"
    if ones < other_ones:
        ones, tens = ones + 10, tens - 1
    return f"{ones}-{other_ones}={ones - other_ones},{tens}-{other_tens}={tens - other_tens}"
