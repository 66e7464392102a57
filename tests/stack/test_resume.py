"""A run that is killed with SIGKILL and continued is the run that was not."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .runs import ROOT, lines, processes_of, train

LIMIT = 600  # seconds until something has gone wrong


def wait_for(condition, launcher: subprocess.Popen | None = None) -> None:
    started = time.monotonic()
    while not condition():
        assert launcher is None or launcher.poll() is None, "the launcher ended"
        assert time.monotonic() - started < LIMIT
        time.sleep(0.001)  # a checkpoint of the tiny model is written in a few hundred of them


def is_free(run_dir: Path) -> bool:
    """Whether the keeper, which outlives the launcher, has let go of the run."""
    with (run_dir / ".lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def resuming(run_dir: Path, *options: str) -> list[str]:
    return [str(ROOT / "train_grpo.sh"), "--tiny", "--resume", str(run_dir), "--steps", "10", *options]


def environment() -> dict[str, str]:
    return {**os.environ, "GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", "SAVE_STEPS": "2"}


def kill_at(reached: Callable[[], bool], command: list[str], run_dir: Path) -> None:
    """Continue the run, and end all its processes by SIGKILL when it has got to a place."""
    launcher = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, cwd="/")
    started: dict[int, str] = {}

    def is_there() -> bool:
        nonlocal started
        if reached():
            return True
        started = processes_of(run_dir)  # looked up before: a checkpoint is written faster than they are found
        return False

    try:
        wait_for(is_there, launcher)
        for process in started:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process, signal.SIGKILL)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not processes_of(run_dir) and is_free(run_dir))


@pytest.fixture(scope="module")
def resumed(finished, tmp_path_factory) -> Path:
    """The finished run with a last checkpoint that a disk has damaged.

    It is refused, continued from the step before, killed while it trains, and then finished.

    What a kill while it saves leaves is in tests/grpo/checkpoint/test_kill.py, at every instant.
    """
    run_dir = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(finished, run_dir)
    state = run_dir / "checkpoints" / "step_10" / "trainer" / "rank_0.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    refused = subprocess.run(resuming(run_dir, "--check"), env=environment(), capture_output=True, text=True, cwd="/")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "trainer/rank_0.pt was changed" in refused.stderr and "--from-step 8 continues" in refused.stderr
    log, metrics = run_dir / "logs" / "driver.log", run_dir / "metrics.jsonl"
    seen = log.stat().st_size
    kill_at(lambda: b"Train epoch" in log.read_bytes()[seen:], resuming(run_dir, "--from-step", "8"), run_dir)
    assert lines(metrics)[-1]["step"] == 8, "it was killed too late"
    (run_dir / "checkpoints" / ".step_10.partial" / "adapter").mkdir(parents=True)
    assert "continuing after step 8" in train("--resume", run_dir, "--steps", 10, SAVE_STEPS="2")
    return run_dir


@pytest.mark.timeout(1500)
def test_the_metrics_are_those_of_a_run_that_was_not_killed(finished, resumed):
    expected, found = lines(finished / "metrics.jsonl"), lines(resumed / "metrics.jsonl")
    assert [row["step"] for row in found] == [row["step"] for row in expected] == list(range(1, 11))
    assert found[:8] == expected[:8]
    for row, wanted in zip(found, expected, strict=True):
        for name in ("actor_lr", "optimizer_step", "optimizer_steps"):
            assert row[name] == wanted[name]
        # Engines that batch requests otherwise may round a near tie to another token.
        for name in ("reward", "correct", "response_length", "advantage_std"):
            assert row[name] == pytest.approx(wanted[name], rel=0.15, abs=0.03), (row["step"], name)
    assert [row["step"] for row in lines(resumed / "eval.jsonl")] == [0, 10]


@pytest.mark.timeout(1500)
def test_it_draws_the_same_prompts_and_samples(finished, resumed):
    for step in (9, 10):
        expected, found = (lines(run / "samples" / f"step_{step}.jsonl") for run in (finished, resumed))
        assert [row["prompt"] for row in found] == [row["prompt"] for row in expected]
    # The first step after the checkpoint samples from the same policy with the same seeds.
    expected, found = (lines(run / "samples" / "step_9.jsonl") for run in (finished, resumed))
    same = sum(a["response"] == b["response"] for a, b in zip(found, expected, strict=True))
    assert same >= 0.9 * len(expected)


@pytest.mark.timeout(1500)
def test_it_ends_with_its_checkpoints_and_no_process(resumed):
    (aside,) = (resumed / "checkpoints").glob("set-aside-*")
    assert {path.name for path in (resumed / "checkpoints").iterdir()} == {"step_8", "step_10", aside.name}
    assert [path.name for path in aside.iterdir()] == ["step_10"]
    assert (resumed / f"final-{aside.name}" / "adapter_model.safetensors").is_file()
    assert (resumed / "final" / "adapter_model.safetensors").is_file()
    assert [row["step"] for row in lines(resumed / "resumes.jsonl")] == [8] * 2
    assert processes_of(resumed) == {}
