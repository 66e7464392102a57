"""Word problems made by code, with integer answers from 0 to 999: the training data of the tiny model.

    python -m data.synthetic --out train.jsonl --split train --count 512

The two splits never share a problem: which one a problem belongs to follows from a hash of its numbers, so
it does not depend on the seed or on the count.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

SPLITS = ("train", "eval")
KINDS = ("add", "subtract", "look up")
NAMES = ("Ann", "Bob", "Eve", "Kim", "Leo", "Max")
THINGS = ("apples", "books", "coins", "stamps")
_EVAL_SHARE = 0.2


@dataclass(frozen=True)
class Problem:
    """One problem. `numbers` are the operands, or for `look up` what each of `names` has."""

    kind: str
    numbers: tuple[int, int]
    names: tuple[str, str] = ("", "")
    thing: str = ""
    asked: int = 0

    @property
    def question(self) -> str:
        first, second = self.numbers
        if self.kind == "add":
            return f"What is {first} plus {second}?"
        if self.kind == "subtract":
            return f"What is {first} minus {second}?"
        one, other = self.names
        return (
            f"{one} has {first} {self.thing}. {other} has {second} {self.thing}. "
            f"How many {self.thing} has {self.names[self.asked]}?"
        )

    @property
    def answer(self) -> int:
        first, second = self.numbers
        if self.kind == "add":
            return first + second
        return first - second if self.kind == "subtract" else self.numbers[self.asked]

    @property
    def id(self) -> str:
        return "synthetic-" + hashlib.sha256(self.question.encode()).hexdigest()[:16]

    @property
    def split(self) -> str:
        # The kind and the numbers alone decide, so the same sum with other names is not held out.
        key = f"{self.kind} {self.numbers}".encode()
        return "eval" if hashlib.sha256(key).digest()[0] < 256 * _EVAL_SHARE else "train"

    def record(self) -> dict[str, str]:
        """The line of a prepared data file: prompt, label, datasource, id."""
        return {
            "prompt": self.question,
            "label": str(self.answer),
            "datasource": "synthetic",
            "id": self.id,
        }


def _draw(rng: random.Random) -> Problem:
    kind = rng.choice(KINDS)
    if kind == "look up":
        numbers = (rng.randrange(100, 1000), rng.randrange(100, 1000))
        one, other = rng.sample(NAMES, 2)
        return Problem(kind, numbers, (one, other), rng.choice(THINGS), rng.randrange(2))
    first, second = rng.randrange(10, 100), rng.randrange(10, 100)
    if kind == "subtract" and second > first:
        first, second = second, first
    return Problem(kind, (first, second))


def problems(split: str, seed: int = 0) -> Iterator[Problem]:
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


def distinct_problems(split: str, count: int, seed: int = 0) -> list[Problem]:
    """The first `count` different problems of `problems(split, seed)`."""
    return list(islice(dict.fromkeys(islice(problems(split, seed), 4 * count)), count))


def write(path: Path, split: str, count: int, seed: int = 0) -> None:
    """Write `count` different records of a split as JSON lines."""
    chosen = distinct_problems(split, count, seed)
    lines = [json.dumps(problem.record(), ensure_ascii=False) for problem in chosen]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.out, arguments.split, arguments.count, arguments.seed)


if __name__ == "__main__":
    main()
