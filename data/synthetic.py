"""Sums and differences, made by code: the training data of the tiny model.

The answers are integers from 0 to 999, as AIME's. The splits never share a problem: which one a problem belongs
to follows from its hash, not from the seed or the count.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

SPLITS = ("train", "eval")
OPERATIONS = ("plus", "minus")
MAX_COUNT = 2000
_EVAL_SHARE = 0.2


@dataclass(frozen=True)
class Calculation:
    """`first operation second`: a number of two or three digits and one of two; the answer is 0 to 999."""

    operation: str
    first: int
    second: int

    @property
    def question(self) -> str:
        return f"What is {self.first} {self.operation} {self.second}?"

    @property
    def answer(self) -> int:
        return self.first + self.second if self.operation == "plus" else self.first - self.second

    @property
    def split(self) -> str:
        first_byte = hashlib.sha256(self.question.encode()).digest()[0]
        return "eval" if first_byte < 256 * _EVAL_SHARE else "train"


def _draw(rng: random.Random) -> Calculation:
    while True:
        problem = Calculation(rng.choice(OPERATIONS), rng.randrange(10, 1000), rng.randrange(10, 100))
        if 0 <= problem.answer <= 999:
            return problem


def problems(split: str, seed: int = 0) -> Iterator[Calculation]:
    """Endless problems of one split, the same for the same seed.

    Raises:
        ValueError: on an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    rng = random.Random(f"{split} {seed}")
    while True:
        problem = _draw(rng)
        if problem.split == split:
            yield problem


def distinct_problems(split: str, count: int, seed: int = 0) -> list[Calculation]:
    """The first `count` different problems of `problems(split, seed)`.

    Raises:
        ValueError: if `count` is more than `MAX_COUNT`.
    """
    if count > MAX_COUNT:
        raise ValueError(f"a split has at least {MAX_COUNT} different problems, {count} were asked for")
    chosen: dict[Calculation, None] = {}
    source = problems(split, seed)
    while len(chosen) < count:
        chosen[next(source)] = None
    return list(chosen)
