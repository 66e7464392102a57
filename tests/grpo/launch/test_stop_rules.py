"""Rules that end a run. test_restarts.py ends a real process by one of them."""

import argparse
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.launch import stop_rules
from grpo.launch.supervise import last_words
from grpo.launch.supervise.last_words import LastWords
from grpo.launch.supervise.watch import Stop
from grpo.metrics.parity import PolicyMismatch
from grpo.run.progress import Progress
from grpo.run.run_files import RunFiles
from grpo.stack import machine
from grpo.stack.problem import Problem

OFF = {"stop_fall": None, "stop_non_finite": False, "stop_disk_gb": None, "stop_judge_failed": None}
WORST = {"step": 4, "dropped_values": 1, "judge_failed": 1.0}


def find_rule(folder: Path, metrics: list[dict], evals: list, *, is_old: bool = False, **flags: object) -> Stop | None:
    """Return the rule that applies to these lines; `is_old`: an earlier part of the run has logged them."""
    rows = [
        {"step": 10 * number} | (value if isinstance(value, dict) else {"exact_match": value})
        for number, value in enumerate(evals)
    ]
    for name, lines in (("metrics", metrics), ("eval", rows)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    progress = Progress(RunFiles(folder, folder), None)
    if is_old:
        progress.skip()
    progress.poll()
    return stop_rules.find(argparse.Namespace(**OFF | flags), progress, {"metrics": folder})


def test_no_rule_is_on_by_default(tmp_path: Path) -> None:
    assert find_rule(tmp_path, [WORST] * 3, [0.9, 0.0]) is None


@pytest.mark.parametrize(
    ("evals", "reason"),
    [
        ([0.5, 0.75, 0.7], None),
        ([0.5, 0.75, 0.5], "held-out exact match fell from 0.750 at step 10 to 0.500 at step 20"),
        ([{"score": 7.0}, 0.5], None),
        ([], None),
    ],
)
def test_a_fall_of_the_held_out_score_is_from_the_best(tmp_path: Path, evals: list, reason: str | None) -> None:
    stop = find_rule(tmp_path, [WORST], evals, stop_fall=0.25)
    assert (stop.reason.what if stop else None) == reason
    if stop:
        assert "step_10" in stop.reason.remedy and stop.is_saved


def test_a_loss_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    stop = find_rule(tmp_path, [WORST], [], stop_non_finite=True)
    assert stop and stop.reason.what == "step 4: the loss is not finite" and not stop.is_saved
    other = {"step": 5, "dropped_values": 1, "policy_loss": 0.1}
    assert find_rule(tmp_path, [WORST, other], [], stop_non_finite=True) is None, "another number was lost"


def test_what_ended_an_earlier_part_does_not_end_this_one(tmp_path: Path) -> None:
    rules = {"stop_fall": 0.25, "stop_non_finite": True, "stop_judge_failed": 0.5}
    assert find_rule(tmp_path, [WORST] * 3, [0.75, 0.5], **rules)
    assert find_rule(tmp_path, [WORST] * 3, [0.75, 0.5], is_old=True, **rules) is None


def test_an_adapter_that_is_not_finite_is_the_loss_that_was_not() -> None:
    """The sync notices it before the step is logged."""
    words, args = LastWords("FloatingPointError", "8 of 8 adapter tensors", "", []), argparse.Namespace(**OFF)
    assert stop_rules.explain_failure(args, 3, words) is None
    args.stop_non_finite = True
    stop = stop_rules.explain_failure(args, 3, words)
    assert stop and stop.what == "step 4: the loss is not finite"
    assert stop_rules.explain_failure(args, 3, replace(words, kind="RuntimeError")) is None
    assert stop_rules.explain_failure(args, 3, None) is None


def test_a_failure_of_the_parity_gate_is_a_rule() -> None:
    """A run that is started again computes the same, so it is not restarted."""
    error = pickle.loads(pickle.dumps(PolicyMismatch("engine 1: another temperature", "set it")))  # as Ray sends it
    stop = stop_rules.explain_failure(argparse.Namespace(**OFF), 3, last_words.find_first_cause(error))
    assert stop == Problem("engine 1: another temperature", "set it")


def test_a_disk_that_fills(tmp_path: Path) -> None:
    free = machine.disk_free(tmp_path) / machine.GB
    assert find_rule(tmp_path, [], [], stop_disk_gb=free / 2) is None
    stop = find_rule(tmp_path, [], [], stop_disk_gb=free * 2)
    assert stop and stop.reason.what.startswith("the disk of metrics has ") and str(tmp_path) in stop.reason.what


@pytest.mark.parametrize(("shares", "ends"), [((0.6, 0.9, 0.6), True), ((0.6, 0.5, 0.6), False), ((0.6, 0.6), False)])
def test_a_judge_that_fails_for_three_steps(tmp_path: Path, shares: tuple, ends: bool) -> None:
    rows = [{"step": step, "judge_failed": share} for step, share in enumerate(shares, 1)]
    stop = find_rule(tmp_path, rows, [], stop_judge_failed=0.5)
    assert bool(stop) == ends
    assert stop is None or "more than 50% of the rollouts of 3 steps" in stop.reason.what
