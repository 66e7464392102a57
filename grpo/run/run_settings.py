"""The settings of runs, and how they differ."""

import json
from collections.abc import Sequence
from typing import Any

from grpo.run.run_state import Run

# These differ between any two runs and affect nothing.
PLACES = {"run_dir", "metrics_dir", "ckpt_path", "save_path", "engine_model", "resume_from", "wandb_run_name"}
ABSENT = "-"


def settings(run: Run) -> dict[str, str]:
    """Return everything known to affect a run: flags, judge, data, versions, hardware, patches."""
    left_out = ("flags", "given", "changes", "script", "sources", "plan", "judge")
    env, patches = run.read(run.files.environment), run.read(run.files.patches)
    parts: dict[str, Any] = {
        **{key: value for key, value in run.config.items() if key not in left_out},
        **run.part("flags"),
        **_judge(run),
        **{key: value for key, value in env.items() if key != "packages"},
        **{f"package {key}": value for key, value in _items(env.get("packages"))},
    }
    if "digest" in patches:
        parts["patches"] = patches["digest"]
    return {key: text for name, value in parts.items() if name not in PLACES for key, text in _flat(name, value)}


def read_given(run: Run) -> dict[str, str]:
    """Return the settings that were set explicitly rather than left to their defaults."""
    parts = {**run.part("given"), **_judge(run), **run.part("reward")}
    return {name: _text(value) for name, value in parts.items() if name not in PLACES}


def list_edits(run: Run) -> list[list[str]]:
    """Return what differs from the shipped recipe: flag, value, what it would be, and where it was set."""
    changed = run.part("changes").items()
    return [[name, *map(_text, parts)] for name, parts in changed if isinstance(parts, list) and len(parts) == 3]


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings in which runs differ, with each run's value."""
    all_settings = [settings(run) for run in runs]
    names = dict.fromkeys(name for values_of_run in all_settings for name in values_of_run)
    values = {name: [values_of_run.get(name, ABSENT) for values_of_run in all_settings] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def changes(run: Run) -> list[tuple[str, str, str, str]]:
    """Return what was changed at resumptions: step, name, old, new."""
    return [
        (_text(row.get("step")), name, _text(pair[0]), _text(pair[1]))
        for row in run.resumes
        for name, pair in _items(row.get("changed"))
        if isinstance(pair, list) and len(pair) == 2
    ]


def _judge(run: Run) -> dict[str, Any]:
    """Return the settings of the judge; {} if it is off."""
    return {} if run.config.get("judge_off") else run.part("judge")


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}", inner)]
    return [(name, _text(value))]


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
