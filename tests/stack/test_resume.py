"""A run that is continued from a checkpoint is the run that was not interrupted, however its GPUs hold the base.

The checkpoint is of ranks that share the base. test_loss_and_lengths.py goes the other way, and to more ranks.
"""

import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from scripts.export_model import export_model
from tests.faults import assert_seen

from .runs import lines, processes_of, terminate, train


@pytest.fixture(scope="module")
def resumed(finished, tmp_path_factory) -> Path:
    """The finished run with a damaged last checkpoint: it is rejected, and the run continues from the step before.

    Each rank now holds the whole base. After step 9 comes a SIGTERM: the step is saved, and the run resumed once more.

    What a kill leaves: test_loss_and_lengths.py kills a run in a step, and
    tests/grpo/checkpoint/test_kill.py one that saves, at every instant.
    """
    run_dir = tmp_path_factory.mktemp("runs") / "resumed"
    shutil.copytree(finished, run_dir)
    state = run_dir / "checkpoints" / "step_10" / "trainer" / "rank_0.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    call = ("--resume", run_dir, "--steps", 10)
    refused = train(*call, "--check", code=2, SAVE_STEPS="2")
    assert "trainer/rank_0.pt was changed" in refused and "--from-step 8 continues" in refused
    (run_dir / "checkpoints" / ".step_10.partial" / "adapter").mkdir(parents=True)
    metrics = run_dir / "metrics.jsonl"
    settings = {"SAVE_STEPS": "2", "ACTOR_SHARD": "none"}

    def has_made_step_9() -> bool:
        # The launcher takes the file back to step 8 first.
        return (run_dir / "resumes.jsonl").exists() and any(row["step"] == 9 for row in lines(metrics))

    output = terminate(has_made_step_9, *call, "--from-step", 8, **settings)
    assert "continuing after step 8" in output
    assert_seen("SIGTERM", output)
    assert "continuing after step" in train(*call, **settings)
    return run_dir


@pytest.mark.timeout(1500)
def test_metrics_equal_those_of_an_uninterrupted_run(finished, resumed):
    expected, actual = lines(finished / "metrics.jsonl"), lines(resumed / "metrics.jsonl")
    assert [row["step"] for row in actual] == [row["step"] for row in expected] == list(range(1, 11))
    assert actual[:8] == expected[:8]
    for row, wanted in zip(actual, expected, strict=True):
        for name in ("actor_lr", "optimizer_step", "optimizer_steps"):
            assert row[name] == wanted[name]
        # Engines that batch requests otherwise may round a near tie to another token.
        for name in ("reward", "correct", "response_length", "advantage_std"):
            assert row[name] == pytest.approx(wanted[name], rel=0.15, abs=0.03), (row["step"], name)
    assert [row["step"] for row in lines(resumed / "eval.jsonl")] == [0, 10]


@pytest.mark.timeout(1500)
def test_it_draws_the_same_prompts_and_samples(finished, resumed):
    for step in (9, 10):
        expected, actual = (lines(run / "samples" / f"step_{step}.jsonl") for run in (finished, resumed))
        assert [row["prompt"] for row in actual] == [row["prompt"] for row in expected]
    # The first step after the checkpoint samples from the same policy with the same seeds.
    expected, actual = (lines(run / "samples" / "step_9.jsonl") for run in (finished, resumed))
    same = sum(a["response"] == b["response"] for a, b in zip(actual, expected, strict=True))
    assert same >= 0.9 * len(expected)


@pytest.mark.timeout(1500)
def test_it_ends_with_its_checkpoints_and_no_process(resumed):
    (aside,) = (resumed / "checkpoints").glob("set-aside-*")
    kept = {path.name for path in (resumed / "checkpoints").iterdir()}
    # If the SIGTERM came late, step 10 was saved by itself.
    assert kept in ({"step_9", "step_10", aside.name}, {"step_8", "step_10", aside.name})
    assert [path.name for path in aside.iterdir()] == ["step_10"]
    assert (resumed / f"final-{aside.name}" / "adapter_model.safetensors").is_file()
    assert (resumed / "final" / "adapter_model.safetensors").is_file()
    assert [row["step"] for row in lines(resumed / "resumes.jsonl")] in ([8, 9], [8, 10])
    assert [row["code"] for row in lines(resumed / "ends.jsonl")][-2:] == [143, 0]
    assert processes_of(resumed) == {}


@pytest.mark.timeout(1500)
def test_adapters_of_whole_and_shared_bases_are_alike_and_are_exported(finished, resumed, tiny_model, tmp_path):
    adapters = [run / "checkpoints" / "step_10" / "adapter" for run in (finished, resumed)]
    shared, whole = map(layout, adapters)
    assert whole == shared
    merge = export_model(tiny_model / "mxfp4", adapters[1], tmp_path / "exported")
    assert 2 * merge.merged == len(whole)


def layout(adapter: Path) -> dict[str, tuple]:
    """Shape and type of each tensor."""
    with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        return {name: (*values.get_shape(), values.get_dtype()) for name, values in slices.items()}
