"""Options of rollout, loss and lengths together on the real stack, each of which has its unit tests."""

import pytest

from .runs import lines, train


@pytest.mark.timeout(600)
def test_a_thinking_budget_a_reference_and_a_schedule_of_lengths(tiny_model, tmp_path):
    run_dir = tmp_path / "run"
    train(
        "--run-dir", run_dir, "--steps", 2,
        THINKING_BUDGET="8", ANSWER_BUDGET="16", LENGTH_SCHEDULE="40,48@2",
        KL_COEF="0.001", LOSS_AGGREGATION="constant", OVERLONG_BUFFER="8", EVAL_AT_START="0", LOG_SAMPLES="4",
    )  # fmt: skip
    first, second = lines(run_dir / "metrics.jsonl")
    for step in (first, second):
        assert 0 < step["thinking_truncated"] <= 1 and step["thinking_length"] <= 8 and step["answer_length"] <= 16
        assert step["response_length"] <= 8 + 16, "forced tokens are no part of the response"
        assert step["delimiter_log_prob"] < 0 and step["grad_norm"] > 0 and step["dropped_values"] == 0
        assert step["logprob_diff_mean"] < 0.02, "the second call's log-probs belong to its own tokens"
    assert (first["length_limit"], second["length_limit"]) == (40, 48)
    assert first["kl"] == pytest.approx(0, abs=1e-6) and second["kl"] != 0, "the adapter is new in the first step"
    samples = lines(run_dir / "samples" / "step_2.jsonl")
    assert 4 <= len(samples) <= 4 + 6
    cut = [sample for sample in samples if sample["thinking_truncated"] == 1]
    assert cut and all("<|channel|>final<|message|>" in sample["response"] for sample in cut)
    (evaluation,) = lines(run_dir / "eval.jsonl")
    assert evaluation["step"] == 2 and evaluation["thinking_truncated"] > 0
