"""`./train_grpo.sh --tiny` as a user types it.

Only a whole run shows that what was sampled is what is trained on and synced, and that the files tell of it.
"""

import json
from argparse import Namespace
from importlib.metadata import version

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoTokenizer

import patches
from grpo.metrics import metric_schema
from grpo.model import loading
from grpo.train.optimizer_steps import LearningRate

from .recorded import Agreement, compute_sample_log_probs, read_samples, shift_by_one_token, swap_samples
from .rounding import compute_distributions, load_reference_model
from .runs import list_processes, read_lines

COMPARED = 24  # samples of a step: enough to tell a fault, and half a minute of simulated passes


@pytest.mark.timeout(900)
def test_every_step_has_its_metrics(finished_run):
    steps = read_lines(finished_run / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, 7))
    for step in steps:
        assert {"generate", "old_log_probs", "train", "sync", "save", "total"} <= step["seconds"].keys()
        assert 0 <= step["correct"] <= 1
        assert step["judge_failed"] == step["reward_missing"] == step["reward_error"] == 0
        assert step["reward"] == pytest.approx(0.6 * step["correct"] + 0.4 * step["judge_quality"], abs=1e-5)
        assert 0 < step["judge_calls"] <= 1, "every answer is sent once, and not again where it was judged before"
        assert step["judge_tokens"] > 0 and step["judge_cached"] + step["judge_calls"] <= 1 + 1e-6
        assert 0 < step["grad_norm"] <= step["grad_norm_max"]
        assert step["optimizer_steps"] >= 1
        assert step["response_length"] > 0
        assert {"policy_loss", "actor_lr", "ppo_kl", "ppo_clip_ratio", "response_clip_ratio"} <= step.keys()
        assert max(step["grad_norms"]) == step["grad_norm_max"] and len(step["grad_norms"]) == step["optimizer_steps"]
        assert step["thinking_length"] < step["response_length"] <= step["thinking_length"] + step["answer_length"]
        assert step["entropy"] > 0 and 0 <= step["unallocated_mass"] < 0.01
        assert step["dropped_values"] == 0 and step["tokens_per_second"] > 0


@pytest.mark.timeout(900)
def test_the_learning_rate_is_that_of_the_plan(finished_run):
    """DeepSpeed's at each of its steps, of a schedule that spans the run."""
    config = json.loads((finished_run / "config.json").read_text())
    updates = config["plan"]["steps"] * config["plan"]["optimizer_steps_per_step"]
    rate = LearningRate.of_run(Namespace(**config["flags"]), updates)
    steps = read_lines(finished_run / "metrics.jsonl")
    assert rate.length == len(steps) * rate.per_step
    assert [step["actor_lr"] for step in steps] == pytest.approx([rate.compute_at_step(step["step"]) for step in steps])


@pytest.mark.timeout(900)
def test_unwritten_metrics_have_a_reason(finished_run):
    """Every number that the schema says every run has is on the lines of this one, and none that it does not know."""
    written = {name for row in read_lines(finished_run / "metrics.jsonl") for name in metric_schema.flat(row)}
    known = {metric.name for metric in metric_schema.SCHEMA if metric.name != "exact_match" and not metric.when}
    assert known - written == set()
    assert written <= metric_schema.BY_NAME.keys()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [1, 5])
def test_trainer_and_engines_agree_on_what_was_sampled(finished_run, tiny_model, step):
    """The first step's policy is the base model; the fifth step's policy has the adapter saved before it."""
    records = read_lines(finished_run / "samples" / f"step_{step}.jsonl")
    samples = read_samples(records, AutoTokenizer.from_pretrained(tiny_model / "mxfp4"))[:COMPARED]
    adapter = finished_run / "checkpoints" / f"step_{step - 1}" / "adapter" if step > 1 else None
    model = load_reference_model(tiny_model / "mxfp4", adapter)
    agreement = Agreement.measure(samples, model)
    assert agreement.holds()
    faults = {
        "another temperature": compute_sample_log_probs(samples, model, 0.7),
        "the next token": shift_by_one_token(agreement.exact),
    }
    if adapter is None:  # after some training the samples are alike
        faults["another sample"] = swap_samples(agreement.exact)
    else:
        with model.disable_adapter():
            faults["no adapter"] = compute_sample_log_probs(samples, model)
    assert [name for name, fault in faults.items() if not agreement.notices(fault)] == []


@pytest.mark.timeout(900)
def test_evaluations_before_and_after(finished_run):
    evaluations = read_lines(finished_run / "eval.jsonl")
    assert [evaluation["step"] for evaluation in evaluations] == [0, 6]
    for evaluation in evaluations:
        assert 0 <= evaluation["ci_low"] <= evaluation["exact_match"] <= evaluation["ci_high"] <= 1
        samples = read_lines(finished_run / "samples" / f"eval_{evaluation['step']}.jsonl")
        assert len(samples) == evaluation["samples"]
        assert len({sample["id"] for sample in samples}) == evaluation["n"]
        assert all(sample["id"].startswith("synthetic-") for sample in samples)
        assert evaluation["exact_match"] == pytest.approx(sum(s["correct"] for s in samples) / len(samples))


@pytest.mark.timeout(900)
def test_each_token_of_a_greedy_answer_is_the_likeliest(finished_run, tiny_model):
    """Up to ties, while samples of the same policy, the base model, differ from it."""
    model = load_reference_model(tiny_model / "mxfp4")

    def count_unlikely(name: str) -> int:
        """How many tokens of 24 answers are not the likeliest by 0.1 nat."""
        found = 0
        for record in read_lines(finished_run / "samples" / f"{name}_0.jsonl")[:24]:
            [tokens] = record["token_ids"]
            answer = tokens[-int(record["response_length"]) :]
            assert 0 < len(answer) < len(tokens)
            [after] = compute_distributions(model, [tokens])
            values = after[-len(answer) - 1 : -1]
            found += int((values.max(-1).values - values[torch.arange(len(answer)), answer] > 0.1).sum())
        return found

    assert count_unlikely("greedy") <= 2 and count_unlikely("eval") > 6


@pytest.mark.timeout(900)
def test_six_steps_raise_the_held_out_exact_match(finished_run):
    first, last = read_lines(finished_run / "eval.jsonl")
    assert last["exact_match"] >= first["exact_match"] + 0.15
    assert last["ci_low"] > first["ci_high"]


@pytest.mark.timeout(900)
def test_the_run_directory_says_what_ran(finished_run):
    assert (
        json.loads((finished_run / "patches.json").read_text())["digest"] == patches.load(version("openrlhf")).patched
    )
    assert "--engine_model" in (finished_run / "command.sh").read_text()
    assert json.loads((finished_run / "config.json").read_text())["judge"]["JUDGE_RPM"] == "120"
    assert [file.name for file in finished_run.glob("judge*")] == ["judge.jsonl"]
    assert json.loads((finished_run / "env.json").read_text())["packages"]
    assert (finished_run / "logs").is_dir()
    for file in finished_run.rglob("*"):
        if file.is_file():
            assert b"a-secret-that-must-not-leak" not in file.read_bytes(), file


@pytest.mark.timeout(900)
def test_checkpoints_hold_an_adapter_that_peft_loads(finished_run, tiny_model):
    assert {path.name for path in (finished_run / "checkpoints").iterdir()} == {"step_4", "step_6"}
    adapter = finished_run / "checkpoints" / "step_6" / "adapter"
    files = {path.name for path in adapter.iterdir()}
    assert files == {"adapter_model.safetensors", "adapter_config.json", "SHA256SUMS"}
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert all(name.split(".")[-2] in ("lora_A", "lora_B") for name in tensors)
    assert any(tensor.abs().max() > 0 for name, tensor in tensors.items() if "lora_B" in name), "nothing was learned"
    model = PeftModel.from_pretrained(loading.load_gpt_oss(tiny_model / "mxfp4"), adapter)
    assert torch.isfinite(model(torch.arange(20)[None]).logits).all()


@pytest.mark.timeout(900)
def test_nothing_is_left_behind(finished_run):
    assert list_processes(finished_run) == {}
