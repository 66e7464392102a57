"""What is in a run's directory, whatever made it and however it ended."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo import metric_schema, run_state
from grpo.json_files import read_rows

LARGEST = 1e300  # differences of larger numbers are not finite
METRICS, EVALS = "metrics.jsonl", "eval.jsonl"
Row = dict[str, Any]


class RunError(ValueError):
    """A directory is that of no run; the message names the remedy."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: short, and no other run's of the same report.
        metrics, evals: the lines with a step, in the order of steps, one a step.
        resumes: the lines of resumes.jsonl.
        config, env, patches: {} where there is no such file, or it is broken.
        samples: files of rollouts and of evaluations by step.
        state: as :mod:`grpo.run_state` tells it.
    """

    name: str
    folder: Path
    metrics: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    resumes: list[Row] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    patches: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, dict[int, Path]] = field(default_factory=dict)
    state: str = run_state.STOPPED

    @property
    def step(self) -> int:
        """The last step that was logged, 0 where there is none."""
        return self.metrics[-1]["step"] if self.metrics else 0

    @property
    def steps(self) -> int | None:
        """How many steps the run was to make, where its configuration says so."""
        steps = self.part("plan").get("steps")
        return steps if isinstance(steps, int) else None

    def part(self, name: str) -> dict[str, Any]:
        """Return an object of config.json, {} where there is none."""
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}


def read(folders: Sequence[Path]) -> list[Run]:
    """Read the directories, named for what tells them apart.

    Raises:
        RunError: where one is no directory of a run, or is named twice.
    """
    places = [folder.absolute() for folder in folders]
    if len({place.resolve() for place in places}) < len(places):
        raise RunError("a run is named twice: name each once")
    return [_read(place, name) for place, name in zip(places, short_names(places), strict=True)]


def short_names(places: Sequence[Path]) -> list[str]:
    """Return the last parts of each path: as many as all together need to differ."""
    depth = 1
    while True:
        names = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(names)) == len(names):
            return names
        depth += 1


def _read(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise RunError(f"{folder} is no directory: name a run's, such as runs/NAME")
    config = _read_object(folder / "config.json")
    logs = run_state.metrics_dir(folder)
    if not config and not any((logs / file).is_file() for file in (METRICS, EVALS)):
        raise RunError(f"{folder} is no run's directory: it has no config.json, {METRICS} or {EVALS}")
    return Run(
        name=name,
        folder=folder,
        metrics=_steps(logs / METRICS),
        evals=_steps(logs / EVALS),
        resumes=[row for row in read_rows(folder / "resumes.jsonl") if isinstance(row, dict)],
        config=config,
        env=_read_object(folder / "env.json"),
        patches=_read_object(folder / "patches.json"),
        samples={kind: _numbered(folder / "samples", kind) for kind in ("step", "eval")},
        state=_state(folder),
    )


def _state(folder: Path) -> str:
    if run_state.is_run(folder):
        return run_state.Run(folder).state
    return run_state.RUNNING if run_state.is_held(folder) else run_state.STOPPED  # of another version


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a run of another version, or one that was killed: the report says what is missing
        return {}
    return value if isinstance(value, dict) else {}


def _steps(file: Path) -> list[Row]:
    rows = [row for row in read_rows(file) if isinstance(row, dict) and isinstance(row.get("step"), int)]
    return sorted({row["step"]: row for row in rows}.values(), key=lambda row: row["step"])


def _numbered(folder: Path, kind: str) -> dict[int, Path]:
    files = {file.stem.partition("_")[2]: file for file in folder.glob(f"{kind}_*.jsonl")}
    return {int(number): files[number] for number in sorted(filter(str.isdecimal, files), key=int)}


Points = list[tuple[int, float]]


def series(rows: Sequence[Row]) -> dict[str, Points]:
    """Return each number's finite values by step, under the schema's names and those that it does not know."""
    found: dict[str, Points] = {}
    for row in rows:
        for name, value in metric_schema.flat(row).items():
            if abs(value) < LARGEST:  # False for nan
                found.setdefault(name, []).append((row["step"], value))
    return found
