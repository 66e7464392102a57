"""Reads the problems of an evaluation from a file that `python -m data.prepare` has written."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import UserError
from reward.labels import parse_label


@dataclass(frozen=True)
class EvalProblem:
    """One problem: the prompt and the gold answer."""

    id: str
    prompt: str
    label: str
    datasource: str


def read_problems(file: Path, is_graded: bool = True) -> list[EvalProblem]:
    """Return the problems of a prepared `.jsonl` file, in file order.

    Args:
        is_graded: whether the grader reads the labels. Otherwise an environment gets them as they are, and a problem
            without an id is named by the hash of its prompt.

    Raises:
        UserError: if the file is missing or empty, or a line lacks prompt, label or a unique id.
    """
    remedy = "write it with python -m data.prepare" if is_graded else "give prompt and label in every line"
    problems: dict[str, EvalProblem] = {}
    try:
        for number, row in numbered_rows(file):
            try:
                problem = _parse(row, is_graded)
                if problem.id in problems:
                    raise ValueError(f"an earlier line has the same id {problem.id}")
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}", remedy) from None
            problems[problem.id] = problem
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", remedy) from None
    if not problems:
        raise UserError(f"{file} has no problems", remedy)
    return list(problems.values())


def _parse(row: Any, is_graded: bool) -> EvalProblem:
    if isinstance(row, UnicodeDecodeError):
        raise ValueError(f"not UTF-8 ({row.reason})")
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if not is_graded and isinstance(row.get("prompt"), str):
        row = {"id": f"prompt-{hashlib.sha256(row['prompt'].encode()).hexdigest()[:16]}", **row}
    for key in ("prompt", "id"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise ValueError(f"{key!r} is missing or empty")
    if not is_graded and not isinstance(row.get("label"), str):
        raise ValueError("'label' is missing, or no text")
    answer = parse_label(row.get("label")).answer if is_graded else row["label"]
    return EvalProblem(row["id"], row["prompt"], answer, str(row.get("datasource", "default")))


def seed_of(seed: int, problem: str, number: int) -> int:
    """Return the seed of one sample, below 2**56, derived from the evaluation's seed, the problem and the number.

    A sample is therefore the same in any order, beside any number of others, and after an interruption.
    """
    digest = hashlib.sha256(f"{seed} {problem} {number}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
