"""The box of one GPU: engine and actor share it, in an environment with tools, with evaluations and checkpoints.

The experts have adapters, too.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from scripts.tiny_model import tools
from tests.soak.proof import find_differences, has_same_tensors

from .recorded import Agreement, Sample, read_samples, shift_by_one_token
from .rounding import load_reference_model
from .runs import ROOT, kill, read_lines, train

SAVED, LAST, STEPS = 1, 2, 3
EVALUATED = 24
SETTINGS = {
    "ENVIRONMENT": "python", "ROLLOUT_BATCH_SIZE": "4", "TRAIN_BATCH_SIZE": "32", "SAVE_STEPS": str(SAVED),
    "EVAL_STEPS": str(SAVED), "LOG_SAMPLES": "64", "MAX_CHECKPOINTS": "9",
    "TARGET_MODULES": "q_proj k_proj v_proj o_proj experts",
    "TOOL_SECONDS": "300", "ROLLOUT_SECONDS": "600",  # what a busy machine may take
}  # fmt: skip


@dataclass
class Parts:
    """A run that was killed in step 3 and continued after step 1, and a copy of what the kill left."""

    before: Path
    after: Path


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Parts:
    folder = tmp_path_factory.mktemp("runs")
    run, held_out = folder / "run", folder / "eval.jsonl"
    held_out.write_text("\n".join(map(json.dumps, tools.rows("python", "eval")[:EVALUATED])))
    settings = SETTINGS | {"EVAL_DATA": str(held_out)}
    metrics, box = run / "metrics.jsonl", ("--gpus", 1, "--steps", STEPS)

    def is_evaluated() -> bool:  # the last that is done in a step
        rows = metrics.read_bytes().splitlines() if metrics.exists() else []
        return any(f'"step": {LAST},'.encode() in row and b'"exact_match"' in row for row in rows)

    kill(run, is_evaluated, *box, "--run-dir", run, **settings)
    shutil.copytree(run, folder / "before", ignore=shutil.ignore_patterns("*.lock"))
    output = train(*box, "--resume", run, "--from-step", SAVED, **settings)
    assert "starting Ray (1 stand-in for GPUs" in output and f"continuing after step {SAVED}" in output
    return Parts(folder / "before", run)


@pytest.mark.timeout(900)
def test_engine_and_actor_agree_before_and_after_the_first_update(parts):
    gates = [*read_lines(parts.before / "parity.jsonl"), *read_lines(parts.after / "parity.jsonl")]
    assert {gate["has_adapter"] for gate in gates} == {False, True}
    assert not [problem for gate in gates for problem in gate["problems"]]


@pytest.mark.timeout(900)
def test_engine_and_actor_hold_one_copy_of_the_base(parts):
    for run in (parts.before, parts.after):
        assert "maps the engine's base" in (run / "logs" / "driver.log").read_text()


@pytest.mark.timeout(900)
def test_rollouts_use_the_tool_and_train(parts):
    steps = read_lines(parts.after / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["token_mismatch"] == step["dropped_values"] == 0 and step["grad_norm"] > 0
        assert step["turns"] > 1 and step["tool_calls"] > 0


@pytest.mark.timeout(900)
def test_samples_of_several_turns_have_the_engines_log_probs(parts):
    model = ROOT / ".cache" / "tiny-model" / "python" / "bf16"
    samples = read_samples(read_lines(parts.after / "samples" / "step_1.jsonl"), AutoTokenizer.from_pretrained(model))[
        :16
    ]
    assert any(map(has_several_turns, samples))
    agreement = Agreement.measure(samples, load_reference_model(model))
    assert agreement.holds()
    assert agreement.notices(shift_by_one_token(agreement.exact)), "the comparison proves nothing"


def has_several_turns(sample: Sample) -> bool:
    places = sample.sampled.nonzero().flatten()
    return int(places[-1] - places[0]) >= len(places)


@pytest.mark.timeout(900)
def test_a_killed_run_that_is_resumed_has_the_numbers_of_an_undisturbed_one(parts):
    """Of the steps that both made: an undisturbed run first, and then the resumed one."""
    before, after = (read_lines(run / "metrics.jsonl") for run in (parts.before, parts.after))
    assert len(before) >= LAST and find_differences(before[:LAST], after[:LAST]) == []
    before, after = (read_lines(run / "eval.jsonl") for run in (parts.before, parts.after))
    assert [row["step"] for row in after] == [0, SAVED, LAST, STEPS]
    assert find_differences(before, after[: len(before)]) == [] and before[-1]["step"] == LAST
    folders = [run / "checkpoints" / f"step_{LAST}" / "adapter" for run in (parts.before, parts.after)]
    assert has_same_tensors(*(folder / "adapter_model.safetensors" for folder in folders))
