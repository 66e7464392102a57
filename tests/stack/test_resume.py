"""A run that is continued from a checkpoint is the run that was not interrupted, however its GPUs hold the base.

An engine whose core is killed while it samples ends the attempt. The restart makes the same numbers.

Only real runs show that the numbers after a restart are those of an undisturbed run.

The checkpoint is of ranks that share the base. test_loss_and_lengths.py goes the other way, after a kill;
test_one_gpu.py continues after a SIGTERM.
"""

import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from .runs import going, list_processes, read_lines, read_phase, wait_for

LAST = 6  # the steps of the finished run
SAVED, NEXT = LAST - 2, LAST - 1


@pytest.fixture(scope="module")
def resumed_run(finished_run, tmp_path_factory) -> Path:
    """The finished run with a damaged last checkpoint: it is kept, and the run continues from the one before.

    Each rank now holds the whole base, and there are two engines. In the last step the core of one is killed, and the
    run restarts.

    What a kill leaves: test_loss_and_lengths.py kills a run in a step, and
    tests/grpo/checkpoint/test_kill.py one that saves, at every instant.
    """
    run_dir = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(finished_run, run_dir)
    state = run_dir / "checkpoints" / f"step_{LAST}" / "trainer" / "rank_0.safetensors"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    call = ("--resume", run_dir, "--steps", LAST)
    (run_dir / "checkpoints" / f".step_{LAST}.partial" / "adapter").mkdir(parents=True)
    settings = {"save_steps": "2", "actor_shard": "none", "vllm_num_engines": "2"}
    cores: list[int] = []

    def is_sampling() -> bool:
        # Looked up before: sampling is over faster than they are found.
        if len(cores) < 2:
            cores[:] = [pid for pid, line in list_processes(run_dir).items() if is_core(line)]
        return read_phase(run_dir) == ("generate", LAST)

    with going(*call, **settings) as run:
        wait_for(is_sampling, run.launcher)
        assert len(cores) == 2, list_processes(run_dir)
        os.kill(cores[0], signal.SIGSTOP)  # else it may have sampled everything before it is killed
        time.sleep(1)  # the prompts are on their way to it
        os.kill(cores[0], signal.SIGKILL)
    assert f"step_{LAST} is damaged" in run.output and f"continuing after step {SAVED}" in run.output
    assert "an engine died (pid" in run.output
    assert run.output.count("restarting from step") == 1
    return run_dir


def is_core(line: str) -> bool:
    """Whether a command line is that of an engine's core. Without a zygote, it sometimes has no title."""
    return any(mark in line for mark in ("VLLM::EngineCore", "--multiprocessing-fork"))


@pytest.mark.timeout(1500)
def test_metrics_equal_those_of_an_uninterrupted_run(finished_run, resumed_run):
    expected, actual = read_lines(finished_run / "metrics.jsonl"), read_lines(resumed_run / "metrics.jsonl")
    assert [row["step"] for row in actual] == [row["step"] for row in expected] == list(range(1, LAST + 1))
    assert actual[:SAVED] == expected[:SAVED]
    for row, wanted in zip(actual, expected, strict=True):
        for name in ("actor_lr", "optimizer_step", "optimizer_steps"):
            assert row[name] == wanted[name]
        # A rank with the whole base rounds otherwise, and so updates the policy a little otherwise.
        for name in ("reward", "correct", "response_length", "reward_std"):
            assert row[name] == pytest.approx(wanted[name], rel=0.15, abs=0.03), (row["step"], name)
    assert [row["step"] for row in read_lines(resumed_run / "eval.jsonl")] == [0, LAST]


@pytest.mark.timeout(1500)
def test_it_draws_the_same_prompts_and_samples(finished_run, resumed_run):
    for step in (NEXT, LAST):
        expected, actual = (read_lines(run / "samples" / f"step_{step}.jsonl") for run in (finished_run, resumed_run))
        assert [row["prompt"] for row in actual] == [row["prompt"] for row in expected]
        assert Counter(row["id"] for row in actual) == Counter(row["id"] for row in expected)
    # The first step after the checkpoint samples from the same policy with the same seeds.
    expected, actual = (read_lines(run / "samples" / f"step_{NEXT}.jsonl") for run in (finished_run, resumed_run))
    assert [row["response"] for row in actual] == [row["response"] for row in expected]


@pytest.mark.timeout(1500)
def test_it_ends_with_its_checkpoints_and_no_process(resumed_run):
    (damaged,) = (resumed_run / "checkpoints").glob(f"damaged-step_{LAST}-*")
    kept = {path.name for path in (resumed_run / "checkpoints").iterdir()}
    assert kept == {f"step_{SAVED}", f"step_{LAST}", damaged.name}
    assert (resumed_run / "final" / "adapter_model.safetensors").is_file()
    assert [row["step"] for row in read_lines(resumed_run / "resumes.jsonl")] == [SAVED, SAVED]
    assert read_lines(resumed_run / "ends.jsonl")[-1]["code"] == 0
    assert list_processes(resumed_run) == {}
