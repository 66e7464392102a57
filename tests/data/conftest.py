"""Made-up problems in the columns of the real data sets."""

import json
import random
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAPERS = [(year, contest) for year in (2022, 2023, 2024) for contest in (1, 2)]
SUBJECTS = ("Algebra", "Geometry", "Precalculus")


def make_words(number: int) -> str:
    """Twelve made-up words, so that problems differ in their wording and not only in a number."""
    rng = random.Random(number)
    return " ".join("".join(rng.choices("bdfgklmnprst", k=4)) for _ in range(12))


def make_aime_rows(first_number: int = 1) -> list[dict[str, Any]]:
    """Six papers; `first_number` 0 is how some files count."""
    return [
        {
            "problem": f"What is {number} times {year}, {make_words(1000 * year + 100 * contest + number)}?",
            "answer": f"{number * year % 1000:03d}",
            "year": year,
            "contest": contest,
            "number": number - 1 + first_number,
        }
        for year, contest in PAPERS
        for number in range(1, 16)
    ]


def make_math_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "problem": f"Halve {make_words(i)}.",
            "answer": f"\\frac{{{i}}}{{2}}",
            "level": 4 + i % 2,
            "subject": SUBJECTS[i % 3],
        }
        for i in range(count)
    ]


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_split(out: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / f"{split}.jsonl").read_text().splitlines()]
