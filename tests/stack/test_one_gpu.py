"""The box of one GPU: engine and actor share it, in an environment with tools, with evaluations and checkpoints."""

from pathlib import Path

import pytest

from scripts.soak.proof import differences, same_tensors

from .runs import kill, lines, train

STEPS, SAVED = 4, 2
SETTINGS = {
    "ENVIRONMENT": "python", "ROLLOUT_BATCH_SIZE": "4", "TRAIN_BATCH_SIZE": "32", "SAVE_STEPS": str(SAVED),
    "EVAL_STEPS": str(SAVED),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """An undisturbed run, and one that is killed in the step after its checkpoint, and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    whole, killed = folder / "whole", folder / "killed"
    box = ("--gpus", 1, "--steps", STEPS)
    assert "starting Ray (1 GPU" in train(*box, "--run-dir", whole, **SETTINGS)
    saved = killed / "checkpoints" / f"step_{SAVED}"
    kill(killed, lambda: saved.exists(), *box, "--run-dir", killed, **SETTINGS)
    assert f"continuing after step {SAVED}" in train(*box, "--resume", killed, **SETTINGS)
    return whole, killed


@pytest.mark.timeout(900)
def test_engine_and_actor_agree_before_and_after_the_first_update(runs):
    for run in runs:
        gates = lines(run / "parity.jsonl")
        assert {gate["has_adapter"] for gate in gates} == {False, True}
        assert not [problem for gate in gates for problem in gate["problems"]]


@pytest.mark.timeout(900)
def test_rollouts_use_the_tool_and_train(runs):
    steps = lines(runs[0] / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["token_mismatch"] == step["dropped_values"] == 0 and step["grad_norm"] > 0
        assert step["turns"] > 1 and step["tool_calls"] > 0


@pytest.mark.timeout(900)
def test_a_killed_run_that_is_resumed_has_the_numbers_of_an_undisturbed_one(runs):
    whole, killed = runs
    assert differences(lines(whole / "metrics.jsonl"), lines(killed / "metrics.jsonl")) == []
    evaluations = [lines(run / "eval.jsonl") for run in runs]
    assert [row["step"] for row in evaluations[0]] == [0, SAVED, STEPS]
    assert differences(*evaluations) == []
    assert same_tensors(*(run / "final" / "adapter_model.safetensors" for run in runs))
