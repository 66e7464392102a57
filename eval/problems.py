"""Reads the problems of an evaluation from a file that `python -m data.prepare` has written."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward.labels import parse_label


class EvalError(ValueError):
    """The requested evaluation is not possible; the message names the remedy."""


@dataclass(frozen=True)
class EvalProblem:
    """One problem: the prompt and the gold answer."""

    id: str
    prompt: str
    label: str
    datasource: str


def read_problems(file: Path) -> list[EvalProblem]:
    """Return the problems of a prepared `.jsonl` file, in file order.

    Raises:
        EvalError: if the file is missing or empty, or a line lacks prompt, label or a unique id.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise EvalError(f"{file} cannot be read ({error.strerror}): python -m data.prepare writes data files") from None
    except UnicodeDecodeError as error:
        raise EvalError(f"{file} is not UTF-8 ({error.reason}): write it with python -m data.prepare") from None
    problems: dict[str, EvalProblem] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            problem = _parse(json.loads(line))
            if problem.id in problems:
                raise ValueError(f"the id {problem.id} is that of an earlier line")
        except ValueError as error:
            raise EvalError(f"{file}, line {number}: {error}; write the file with python -m data.prepare") from None
        problems[problem.id] = problem
    if not problems:
        raise EvalError(f"{file} holds no problem: write it with python -m data.prepare")
    return list(problems.values())


def _parse(row: Any) -> EvalProblem:
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    for key in ("prompt", "id"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise ValueError(f"no {key!r}")
    answer = parse_label(row.get("label")).answer
    return EvalProblem(row["id"], row["prompt"], answer, str(row.get("datasource", "default")))


def seed_of(seed: int, problem: str, number: int) -> int:
    """Return the seed of one sample, below 2**56, derived from the evaluation's seed, the problem and the number.

    A sample is therefore the same in any order, beside any number of others, and after an interruption.
    """
    digest = hashlib.sha256(f"{seed} {problem} {number}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
