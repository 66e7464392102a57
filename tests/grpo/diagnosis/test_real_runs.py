"""Small real runs: healthy ones that differ in their seed, and some with a fault that was chosen apart from the rules.

A file of `real_runs/` holds the columns of metrics.jsonl, the evaluations, the settings, and which findings would name
the fault within how many steps.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.diagnosis.diagnose import alarms, diagnose

RUNS = {file.stem: json.loads(file.read_text()) for file in (Path(__file__).parent / "real_runs").glob("*.json")}
SICK = sorted(name for name, run in RUNS.items() if run["fault"])
LATE = {"many-updates": 3}  # the drift of its KL shows in step 12
# True beside the fault: noise and dropout part trainer and engine, or ruin the policy; a ruined policy's entropy rises.
ALSO_SO = {"mismatch", "correctness_fall", "entropy_rise"}


def list_rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    count = len(run["columns"]["step"])
    return [{name: column[at] for name, column in run["columns"].items()} for at in range(count)]


def find_first_named(run: dict[str, Any]) -> dict[str, int]:
    """Return the step after which each alarm is first given."""
    first: dict[str, int] = {}
    rows = list_rows(run)
    for end, row in enumerate(rows, 1):
        evals = [one for one in run["evals"] if one["step"] <= row["step"]]
        for finding in alarms(diagnose(rows[:end], evals, run["config"])):
            first.setdefault(finding.name, row["step"])
    return first


@pytest.mark.parametrize("name", sorted(set(RUNS) - set(SICK)))
def test_a_healthy_run_gives_no_alarm_after_any_step(name: str) -> None:
    assert not find_first_named(RUNS[name])


@pytest.mark.parametrize("name", SICK)
def test_a_fault_is_named_in_time_and_nothing_false(name: str) -> None:
    run = RUNS[name]
    first = find_first_named(run)
    limit = run["begins_at_step"] + run["within_steps"] + LATE.get(name, 0)
    assert min((step for what, step in first.items() if what in run["expected"]), default=limit + 1) <= limit, first
    assert set(first) <= {*run["expected"], *run["also_fine"], *ALSO_SO}
