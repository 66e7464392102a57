"""The runs of a report, each under a unique name, and their numbers by step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.metrics import metric_schema
from grpo.run.run_state import Run, RunError

LARGEST = 1e300  # differences of larger numbers are not finite
Row = dict[str, Any]


def read(folders: Sequence[Path]) -> list[Run]:
    """Read the directories; name each by what distinguishes it.

    Raises:
        RunError: if one is not a run directory, or is given twice.
    """
    places = [folder.absolute() for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise RunError("a run is named twice: name each once")
    return [Run(place, name) for place, name in zip(places, short_names(places), strict=True)]


def short_names(places: Sequence[Path]) -> list[str]:
    """Return the last parts of each path: as many as needed to tell them all apart."""
    depth = 1
    while True:
        names = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(names)) == len(names):
            return names
        depth += 1


Points = list[tuple[int, float]]


def series(rows: Sequence[Row]) -> dict[str, Points]:
    """Return each number's finite values by step, under the schema's names and under unknown ones."""
    found: dict[str, Points] = {}
    for row in rows:
        for name, value in metric_schema.flat(row).items():
            if abs(value) < LARGEST:  # False for nan
                found.setdefault(name, []).append((row["step"], value))
    return found
