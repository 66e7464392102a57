"""Chooses training problems by their solve rate: the share of right samples in an evaluation of them.

A problem that is always or never solved gives GRPO no gradient, since all samples of its group get the same reward.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.problems import Problem
from grpo.run.records import grades_by_problem
from grpo.stack.json_files import numbered_rows
from grpo.stack.problem import UserError

_GRADES = "grades.jsonl"


def read(path: Path) -> dict[str, float]:
    """Return the solve rates by problem of a folder of `eval.evaluate`, or of a file of graded samples.

    Raises:
        UserError: if there is no finished evaluation.
    """
    file = path / _GRADES if path.is_dir() else path
    remedy = "name the --out of a finished python -m eval.evaluate, or a file of graded samples"
    try:
        rows = [row for _, row in numbered_rows(file)]
    except OSError as error:
        raise UserError(f"--solve-rates {path}: {file} cannot be read ({error.strerror})", remedy) from None
    if not all(isinstance(row, dict) and {"id", "correct"} <= row.keys() for row in rows):
        raise UserError(f"--solve-rates {path}: {file} has no grades", remedy)
    return {problem: statistics.fmean(grades) for problem, grades in grades_by_problem(rows)[1].items()}


def choose(
    problems: Sequence[Problem], rates: dict[str, float], between: tuple[float, float]
) -> tuple[list[Problem], dict[str, int], dict[str, dict[str, Any]]]:
    """Leave out training problems whose solve rate is unknown or outside a range, whose ends belong to it.

    Returns:
        The problems kept; how many were left out, by reason; and by level (or data source, without levels) the measured
        problems, their mean rate, and how many of them are kept.

    Raises:
        UserError: if the range is invalid, or no training problem has a rate.
    """
    low, high = between
    if not 0 <= low < high <= 1:
        raise UserError(f"--between is {low:g} {high:g}", "give two shares, the smaller one first: 0.1 0.9")
    train = [problem for problem in problems if problem.split == "train"]
    measured = {problem: rates[problem.id] for problem in train if problem.id in rates}
    if not measured:
        raise UserError(
            f"--solve-rates has none of the {len(train)} training problems",
            "evaluate them first: python -m eval.evaluate --data TRAIN.jsonl on the same problems",
        )
    groups: dict[str, list[float]] = defaultdict(list)
    for problem, rate in measured.items():
        groups[problem.datasource if problem.level is None else f"level {problem.level}"].append(rate)
    table = {
        name: {
            "problems": len(group),
            "solve_rate": round(statistics.fmean(group), 3),
            "kept": sum(low <= rate <= high for rate in group),
        }
        for name, group in sorted(groups.items())
    }
    left_out = {
        "without a solve rate": len(train) - len(measured),
        f"solve rate below {low:g}": sum(rate < low for rate in measured.values()),
        f"solve rate above {high:g}": sum(rate > high for rate in measured.values()),
    }
    kept = [one for one in problems if one.split != "train" or (one in measured and low <= measured[one] <= high)]
    return kept, left_out, table
