"""A run that is killed with SIGKILL and continued is the run that was not."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from .runs import ROOT, lines, processes_of, train

LIMIT = 600  # seconds until something has gone wrong


def wait_for(condition, launcher: subprocess.Popen | None = None) -> None:
    started = time.monotonic()
    while not condition():
        assert launcher is None or launcher.poll() is None, "the launcher ended"
        assert time.monotonic() - started < LIMIT
        time.sleep(0.2)


@pytest.fixture(scope="module")
def resumed(finished, tmp_path_factory) -> Path:
    """The finished run as it was after its checkpoint of step 5; continued, killed in step 8, and continued again."""
    run_dir = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(finished, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "step_10")
    shutil.rmtree(run_dir / "final")
    command = [str(ROOT / "train_grpo.sh"), "--tiny", "--resume", str(run_dir), "--steps", "10"]
    launcher = subprocess.Popen(command, env={**os.environ, "SAVE_STEPS": "5"}, stdout=subprocess.DEVNULL, cwd="/")
    try:
        wait_for((run_dir / "resumes.jsonl").exists, launcher)
        wait_for(lambda: [row["step"] for row in lines(run_dir / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6, 7], launcher)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not processes_of(run_dir))
    assert "continuing after step 5" in train("--resume", run_dir, "--steps", 10, SAVE_STEPS="5")
    return run_dir


@pytest.mark.timeout(1500)
def test_the_metrics_are_those_of_a_run_that_was_not_killed(finished, resumed):
    expected, found = lines(finished / "metrics.jsonl"), lines(resumed / "metrics.jsonl")
    assert [row["step"] for row in found] == [row["step"] for row in expected] == list(range(1, 11))
    assert found[:5] == expected[:5]
    for row, wanted in zip(found, expected, strict=True):
        for name in ("actor_lr", "optimizer_step", "optimizer_steps"):
            assert row[name] == wanted[name]
        # Engines that batch requests otherwise may round a near tie to another token.
        for name in ("reward", "correct", "response_length", "advantage_std"):
            assert row[name] == pytest.approx(wanted[name], rel=0.15, abs=0.03), (row["step"], name)
    assert [row["step"] for row in lines(resumed / "eval.jsonl")] == [0, 10]


@pytest.mark.timeout(1500)
def test_it_draws_the_same_prompts_and_samples(finished, resumed):
    for step in range(6, 11):
        expected, found = (lines(run / "samples" / f"step_{step}.jsonl") for run in (finished, resumed))
        assert [row["prompt"] for row in found] == [row["prompt"] for row in expected]
    # The first step after the checkpoint samples from the same policy with the same seeds.
    expected, found = (lines(run / "samples" / "step_6.jsonl") for run in (finished, resumed))
    same = sum(a["response"] == b["response"] for a, b in zip(found, expected, strict=True))
    assert same >= 0.9 * len(expected)


@pytest.mark.timeout(1500)
def test_it_ends_with_its_checkpoints_and_no_process(resumed):
    assert {path.name for path in (resumed / "checkpoints").iterdir()} == {"step_5", "step_10"}
    assert (resumed / "final" / "adapter_model.safetensors").is_file()
    assert [row["step"] for row in lines(resumed / "resumes.jsonl")] == [5, 5]
    assert processes_of(resumed) == []
