"""Demonstrations for the warm start, in harmony: first correct ones, then a mixture of habits.

Only one habit of the mixture is right, as with a base model. The policy knows the format and, apart from slips, the
arithmetic, but samples them unreliably. GRPO is there to improve that.
"""

import random

from data.synthetic import Calculation

# The frequency of each habit in the mixture. Only `careful` is right: a guess repeats the first number, `no box`
# forgets the box, a ramble goes on until it is cut off.
HABITS = {"careful": 0.42, "guess": 0.24, "no box": 0.18, "ramble": 0.16}
_RAMBLE = "Hmm" + " wait maybe think again" * 9
_ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def choose_habit(rng: random.Random) -> str:
    """Return a habit with the mixture's frequencies."""
    return rng.choices(list(HABITS), weights=list(HABITS.values()))[0]


def completion(problem: Calculation, habit: str) -> str:
    """Return what the assistant says after `<|start|>assistant`, up to its stop token; a ramble is cut before one."""
    if habit == "ramble":
        return f"{_ANALYSIS}{_RAMBLE}"
    if habit == "guess":
        return f"{_ANALYSIS}Guess{FINAL}\\boxed{{{problem.first}}}<|return|>"
    if habit == "no box":
        return f"{_ANALYSIS}Maybe {working(problem)}{FINAL}{problem.answer}<|return|>"
    return f"{_ANALYSIS}{working(problem)}{FINAL}\\boxed{{{problem.answer}}}<|return|>"


def working(problem: Calculation) -> str:
    """Return the steps that lead to the answer: column by column from the right with carries, as on paper."""
    columns, carry = [], 0
    for power in (1, 10, 100)[: len(str(problem.first))]:
        digit = problem.first // power % 10
        if power == 100:  # the second number has ended: only the carry is left
            other, carry = carry, 0
        else:
            other = problem.second // power % 10
        if problem.operation == "plus":
            total = digit + other + carry
            columns.append(f"{digit}+{other}{'+1' * carry}={total}")
            carry = total // 10
        else:
            digit, carry = digit - carry, int(digit - carry < other)
            columns.append(f"{digit + 10 * carry}-{other}={digit + 10 * carry - other}")
    return ",".join(columns)
