"""Options of rollout, routing, loss, and lengths together in the box of 4 GPUs. Each of them has its unit tests."""

import pytest
from transformers import AutoTokenizer

from .recorded import Agreement, read_samples, shift_by_one_token
from .rounding import load_reference_model
from .runs import read_lines, train

DELIMITER = "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.timeout(600)
def test_a_second_stage_with_a_thinking_budget_a_reference_and_a_schedule_of_lengths(
    finished_run, tiny_model, tmp_path
):
    """One engine on two GPUs, two ranks, which start from the adapter of another run.

    The first limit of 28 leaves 6 of 8 tokens for the thinking, after 6 for the delimiter and 16 for the answer.
    """
    run_dir = tmp_path / "run"
    train(
        "--gpus", 4, "--run-dir", run_dir, "--steps", 2, "--", "--use_kl_loss", "--kl_estimator", "k3",
        THINKING_BUDGET="8", ANSWER_BUDGET="16", GENERATE_MAX_LEN="30", LENGTH_SCHEDULE="28,30@2",
        KL_COEF="0.001", POLICY_LOSS="cispo", LOSS_AGGREGATION="constant", OVERLONG_BUFFER="24", ROUTING_REPLAY="1",
        EVAL_AT_START="0", LOG_SAMPLES="4", ADAPTER=str(finished_run / "final"),
        DYNAMIC_FILTERING="1", DYNAMIC_FILTERING_BATCHES="1", RETIRE_AFTER="1", DROP_GIBBERISH="20",
    )  # fmt: skip
    first, second = read_lines(run_dir / "metrics.jsonl")
    for step, limit, thinking in ((first, 28, 6), (second, 30, 8)):
        assert step["length_limit"] == limit and step["thinking_length"] <= thinking and step["answer_length"] <= 16
        assert 0 < step["thinking_truncated"] <= 1
        assert step["response_length"] <= thinking + 16, "forced tokens are no part of the response"
        assert step["delimiter_log_prob"] < 0 and step["grad_norm"] > 0 and step["dropped_values"] == 0
        assert step["token_mismatch"] == 0
        # Rounding explains few choices that differ; those of other tokens would differ in most layers.
        assert 0 < step["routing_differs"] < 0.05
        # A thought that was cut is within 24 tokens of the limit; with its answer it lacks 6 to the whole penalty.
        assert 0 < step["length_penalty"] <= 0.5 * 18 / 24
        # The step may draw no more than its batch, so the groups outside the window fill it.
        assert step["groups_drawn"] == 16 and step["score_drawn"] == pytest.approx(step["score"])
        assert step["groups_filled"] == 16 * (step["groups_too_hard"] + step["groups_too_easy"])
        assert step["dynamic_filtering_pass_rate"] == pytest.approx(100 * (1 - step["groups_filled"] / 16))
        assert step["degenerate"] == step["degenerate_gibberish"] == 0, "no token has a surprise of 20 nat"
    assert (first["problems_resting"], second["problems_resting"]) == (0, 16 * first["groups_too_easy"])
    assert 0 <= first["kl"] < second["kl"], "k3 is never below 0"
    assert first["kl"] < 1e-6, "in the first step the policy is the reference"
    assert read_lines(run_dir / "parity.jsonl")[0]["has_adapter"], "and not the base model"
    assert second["ppo_kl"] != 0, "replayed in the pass for old log-probs, too"
    mine, others = (
        {row["prompt"] for row in read_lines(run / "samples" / "step_1.jsonl")} for run in (run_dir, finished_run)
    )
    assert mine <= others, "two runs with one seed draw the same prompts"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    forced = tuple(tokenizer.encode(DELIMITER, add_special_tokens=False))
    samples = read_samples(read_lines(run_dir / "samples" / "step_1.jsonl"), tokenizer, forced)
    agreement = Agreement.measure(samples, load_reference_model(tiny_model / "mxfp4", run_dir / "start"))
    assert agreement.holds(), "the second call's log-probs belong to its own tokens"
    assert agreement.notices(shift_by_one_token(agreement.exact)), "the comparison proves nothing"
    samples = read_lines(run_dir / "samples" / "step_2.jsonl")
    assert 4 <= len(samples) <= 4 + 6
    cut = [sample for sample in samples if sample["thinking_truncated"] == 1]
    assert cut and all("<|channel|>final<|message|>" in sample["response"] for sample in cut)
    (evaluation,) = read_lines(run_dir / "eval.jsonl")
    assert evaluation["step"] == 2 and evaluation["thinking_truncated"] > 0
