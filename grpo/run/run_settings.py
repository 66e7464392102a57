"""The settings of runs, and how they differ."""

import json
from collections.abc import Sequence
from typing import Any

from grpo.run.run_state import Run

# These differ between any two runs and affect nothing.
PLACES = {"run_dir", "metrics_dir", "ckpt_path", "save_path", "engine_model", "resume_from", "wandb_run_name"}
# Of config.json: what `settings` names itself, and what follows from the rest.
_LEFT_OUT = {"flags", "given", "changes", "asked", "plan", "judge", "openrlhf"}
ABSENT = "-"


def settings(run: Run) -> dict[str, str]:
    """Return everything known to affect a run: flags, judge, data, versions, hardware, patches."""
    environment, patches = run.read(run.files.environment), run.read(run.files.patches)
    packages = environment.pop("packages", None)
    parts: dict[str, Any] = {
        **{key: value for key, value in run.config.items() if key not in _LEFT_OUT},
        **run.part("flags"),
        **({} if run.config.get("judge_off") else run.part("judge")),
        **environment,
        **{f"package {key}": value for key, value in _items(packages)},
        **({"patches": patches["digest"]} if "digest" in patches else {}),
    }
    return {key: text for name, value in parts.items() if name not in PLACES for key, text in _flat(name, value)}


def list_edits(run: Run) -> list[list[str]]:
    """Return what differs from the shipped recipe: flag, value, what it would be, and where it was set."""
    changed = run.part("changes").items()
    return [[name, *map(_text, parts)] for name, parts in changed if isinstance(parts, list) and len(parts) == 3]


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings in which runs differ, with each run's value."""
    of_runs = [settings(run) for run in runs]
    rows = {name: [other.get(name, ABSENT) for other in of_runs] for one in of_runs for name in one}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def changes(run: Run) -> list[tuple[str, str, str, str]]:
    """Return what was changed at resumptions: step, name, old, new."""
    return [
        (_text(row.get("step")), name, _text(pair[0]), _text(pair[1]))
        for row in run.resumes
        for name, pair in _items(row.get("changed"))
        if isinstance(pair, list) and len(pair) == 2
    ]


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}", inner)]
    return [(name, _text(value))]


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
