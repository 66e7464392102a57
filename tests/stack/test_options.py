"""Options of rollout, routing, loss, and lengths together. Each has its unit tests.

Only a whole run shows that none undoes another.
"""

import pytest
from transformers import AutoTokenizer

from . import doors
from .recorded import Agreement, read_samples, shift_by_one_token
from .rounding import load_reference_model
from .runs import read_lines

DELIMITER = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.timeout(1200)
def test_a_second_stage_with_a_thinking_budget_a_reference_and_a_schedule_of_lengths(attacked, tiny_model):
    """The run of test_doors.py, which starts from the adapter of another run."""
    attacked.end()
    run_dir, prompts = attacked.folder, doors.PROMPTS
    first, second = read_lines(run_dir / "metrics.jsonl")[: doors.STEPS]
    for step, limit, thinking in ((first, 28, 6), (second, 30, 8)):
        assert step["length_limit"] == limit and step["thinking_length"] <= thinking and step["answer_length"] <= 16
        assert 0 < step["thinking_truncated"] <= 1
        assert step["response_length"] <= thinking + 16, "forced tokens are no part of the response"
        assert step["grad_norm"] > 0 and step["dropped_values"] == 0
        assert step["token_mismatch"] == 0
        # Rounding explains few choices that differ; those of other tokens would differ in most layers.
        assert 0 < step["routing_differs"] < 0.05
        # A thought that was cut is within 24 tokens of the limit; with its answer it lacks 6 to the whole penalty.
        assert 0 < step["length_penalty"] <= 0.5 * 18 / 24
        # The step may draw no more than its batch, so the groups outside the window fill it.
        assert step["groups_drawn"] == prompts and step["score_drawn"] == pytest.approx(step["score"])
        assert step["groups_filled"] == prompts * (step["groups_too_hard"] + step["groups_too_easy"])
        assert step["dynamic_filtering_pass_rate"] == pytest.approx(100 * (1 - step["groups_filled"] / prompts))
    assert first["kl"] > 0 and second["kl"] > 0, "k3 is never below 0, and the policy moves within a step"
    assert read_lines(run_dir / "parity.jsonl")[0]["has_adapter"], "and not the base model"
    assert second["ppo_kl"] != 0, "replayed in the pass for old log-probs, too"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    forced = tuple(tokenizer.encode(DELIMITER, add_special_tokens=False))
    samples = read_samples(read_lines(run_dir / "samples" / "step_1.jsonl"), tokenizer, forced)
    agreement = Agreement.measure(samples, load_reference_model(tiny_model / "mxfp4", run_dir / "start"))
    assert agreement.holds(), "the second call's log-probs belong to its own tokens"
    assert agreement.notices(shift_by_one_token(agreement.exact)), "the comparison proves nothing"
    samples = read_lines(run_dir / "samples" / "step_2.jsonl")
    assert 8 <= len(samples) <= 8 + 6
    cut = [sample for sample in samples if sample["thinking_truncated"] == 1]
    assert cut and all("<|channel|>final<|message|>" in sample["response"] for sample in cut)
    (evaluation,) = read_lines(run_dir / "eval.jsonl")
    assert evaluation["step"] == 2 and evaluation["thinking_truncated"] > 0
