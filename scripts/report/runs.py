"""The runs of a report, each under a unique name, and their numbers by step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.metrics import metric_schema
from grpo.run.run_state import Run
from grpo.stack.problem import UserError

LARGEST = 1e300  # differences of larger numbers are not finite
Row = dict[str, Any]


def read(folders: Sequence[Path]) -> list[Run]:
    """Read the directories; name each by what distinguishes it.

    Raises:
        UserError: if one is not a run directory, or is given twice.
    """
    paths = [folder.absolute() for folder in folders]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a run is named twice", "name each run once")
    return [Run(path, name) for path, name in zip(paths, short_names(paths), strict=True)]


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last parts of each path: as many as needed to tell them all apart."""
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        depth += 1


Points = list[tuple[int, float]]


def series(rows: Sequence[Row]) -> dict[str, Points]:
    """Return each number's finite values by step, under the schema's names and under unknown ones."""
    points: dict[str, Points] = {}
    for row in rows:
        for name, value in metric_schema.flat(row).items():
            if abs(value) < LARGEST:  # False for nan
                points.setdefault(name, []).append((row["step"], value))
    return points
