"""Since when correctness has fallen, by any rule. Rotation asks this before it removes a checkpoint."""

from collections.abc import Mapping
from typing import Any

from grpo.diagnosis.diagnose import verdicts
from grpo.diagnosis.finding import WATCH
from grpo.diagnosis.history import RunHistory, build_history
from grpo.diagnosis.rules.correctness import Fall, fall_of_training
from grpo.run.run_files import RunFiles, read_steps

RECENT = 10  # steps that give the present level of correctness


def read_onsets(files: RunFiles, now: Mapping[str, Any]) -> list[int]:
    """Return the step at which each open fall of correctness began. Takes milliseconds.

    Args:
        now: the line of the step being saved: metrics.jsonl gets it after the checkpoint.

    Raises:
        OSError, UserError: if a file cannot be read. Errors of the rules pass through.
    """
    return onsets(build_history([*read_steps(files.metrics), now], read_steps(files.evals), files.read_config()))


def onsets(run: RunHistory) -> list[int]:
    """Return the onsets of all falls of correctness that a run has not recovered from, even if others explain them.

    A fall followed by a deeper one is found among the steps before the deeper one.
    """
    found = [finding for _, verdict in verdicts(run) if isinstance(verdict, list) for finding in verdict]
    fallen_at = [finding.onset for finding in found if finding.severity != WATCH and finding.says_it_fell]
    while earlier := _earlier_fall(run, fallen_at):
        fallen_at.append(earlier)
    return fallen_at


def _earlier_fall(run: RunHistory, known: list[int]) -> int | None:
    """Return the onset of an open fall of correctness before all known ones, or None."""
    if not known:
        return None
    before = RunHistory([row for row in run.rows if row["step"] < min(known)], run.evals, run.config, [])
    fall = fall_of_training(before)
    if not isinstance(fall, Fall) or not fall.is_certain:
        return None
    numbers = fall.evidence.numbers
    now = run.column(run.training_name).values[-RECENT:].mean()
    return fall.onset if now <= (numbers["before"] + numbers["after"]) / 2 else None
