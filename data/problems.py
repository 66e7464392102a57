"""Reads and checks a local file of problems: .jsonl, .json (a list) or .parquet.

A row has `problem` and `answer`; a row of AIME has also `year`, `contest` (1 or 2, I or II) and `number`.
Papers count from 1; one that has a number 0 counts from 0 and is shifted.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward.answers import MARKER, canonical, grade

PROBLEMS_PER_PAPER = 15
_CONTESTS = {"1": 1, "2": 2, "I": 1, "II": 2}
_AIME_FIELDS = ("year", "contest", "number")


class SourceError(ValueError):
    """The source cannot be used as it is; the message says why and what to do."""


@dataclass(frozen=True)
class Problem:
    """One checked problem; `paper` is (year, contest 1 or 2, number 1 to 15) for AIME, else None."""

    text: str
    answer: str
    paper: tuple[int, int, int] | None

    @property
    def digest(self) -> str:
        """Equal for problems that differ only in white space."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()

    @property
    def datasource(self) -> str:
        return "aime" if self.paper else "math"

    @property
    def id(self) -> str:
        """Stable over files and runs: the place in the contest, or a hash of the text."""
        return "aime-{}-{}-{}".format(*self.paper) if self.paper else f"math-{self.digest[:16]}"


def read_problems(source: Path) -> tuple[list[Problem], list[str]]:
    """The good rows, and one line for each bad one: unreadable, incomplete, not gradable, or a repetition.

    Raises SourceError when the file as a whole cannot be read.
    """
    rows = list(_read_rows(source))
    from_zero = {_paper_key(row) for _, row in rows if isinstance(row, dict) and str(row.get("number")) == "0"}
    problems, bad = [], []
    seen: dict[str, str] = {}
    for where, row in rows:
        try:
            problem = _parse(row, from_zero)
            for key in (problem.digest, problem.id):
                if key in seen:
                    raise ValueError(f"repeats {seen[key]}")
            seen[problem.digest] = seen[problem.id] = where
            problems.append(problem)
        except ValueError as error:
            bad.append(f"{where}: {error}")
    return problems, bad


def _read_rows(source: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) for each row; a line of .jsonl that is not JSON comes as a ValueError that says so."""
    if not source.is_file():
        raise SourceError(f"{source} is not a file; give a .jsonl, .json or .parquet file, or `synthetic`")
    if source.suffix == ".jsonl":
        for number, line in enumerate(source.read_bytes().splitlines(), 1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except ValueError as error:  # of JSON or of UTF-8
                    yield f"line {number}", ValueError(f"is not JSON ({error})")
        return
    if source.suffix == ".json":
        try:
            rows = json.loads(source.read_bytes())
        except ValueError as error:
            raise SourceError(f"{source} is not JSON: {error}") from error
        if not isinstance(rows, list):
            raise SourceError(f"{source} must hold a list of problems; for one problem a line use .jsonl")
    elif source.suffix == ".parquet":
        import pyarrow.parquet  # slow to import, and rarely needed

        try:
            rows = pyarrow.parquet.read_table(source).to_pylist()
        except pyarrow.ArrowException as error:
            raise SourceError(f"{source} is not a parquet file: {error}") from error
    else:
        raise SourceError(f"{source} has an unknown ending; use .jsonl, .json or .parquet")
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row


def _parse(row: Any, from_zero: set[tuple[str, str]]) -> Problem:
    """A checked problem. Raises ValueError with what is wrong."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with `problem` and `answer`")
    text, answer = row.get("problem"), row.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("has no `problem`")
    if marker := MARKER.search(text):
        raise ValueError(f"has the control token {marker[0]} in its problem: it would end the message")
    if isinstance(answer, bool) or not isinstance(answer, str | int) or not str(answer).strip():
        raise ValueError("has no `answer` (a text or an integer)")
    answer = str(answer).strip()
    if not grade(f"\\boxed{{{answer}}}", answer).correct:
        raise ValueError(f"has an answer that the grader does not accept: {answer[:80]!r}")
    given = [field for field in _AIME_FIELDS if row.get(field) is not None]
    if not given:
        return Problem(text.strip(), answer, None)
    if len(given) < len(_AIME_FIELDS):
        raise ValueError(f"has {', '.join(given)} but not all of {', '.join(_AIME_FIELDS)}")
    value = canonical(answer)
    if not value.isdecimal() or len(value) > 3:
        raise ValueError(f"has the answer {answer[:80]!r}, but AIME answers are integers from 0 to 999")
    return Problem(text.strip(), answer, _paper(row, from_zero))


def _paper(row: dict[str, Any], from_zero: set[tuple[str, str]]) -> tuple[int, int, int]:
    """(year, contest, number from 1) of an AIME row. Raises ValueError when there is no such problem."""
    contest = _CONTESTS.get(str(row["contest"]).strip())
    try:
        year, number = int(row["year"]), int(row["number"])
    except (TypeError, ValueError) as error:
        raise ValueError("has a year or number that is no integer") from error
    if _paper_key(row) in from_zero:
        number += 1
    if contest is None or not 1 <= number <= PROBLEMS_PER_PAPER or not 1983 <= year <= 2100:
        raise ValueError(f"has no such AIME problem: {year}, contest {row['contest']!r}, number {row['number']}")
    return year, contest, number


def _paper_key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row.get("year")), str(row.get("contest")).strip()
