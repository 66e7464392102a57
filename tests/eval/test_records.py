import math

import pytest

from eval import output
from grpo.run import records
from grpo.stack.problem import UserError

FINAL = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"


def make_raw_record(problem: str, number: int, response: str, **changes) -> dict:
    return {
        "id": problem, "sample": number, "datasource": "sums", "label": "10", "seed": 1, "response": response,
        "response_length": 20, "answer_length": 5, "truncated": 0.0, **changes,
    }  # fmt: skip


def test_record_has_the_verdict_of_the_grader():
    right = records.grade_sample(make_raw_record("a", 0, FINAL + "\\boxed{010}"))
    assert (right["correct"], right["answered"], right["has_final"], right["answer"]) == (1.0, 1.0, 1.0, "10")
    assert "response" not in right
    wrong = records.grade_sample(make_raw_record("a", 0, FINAL + "\\boxed{11}"))
    assert (wrong["correct"], wrong["answer"]) == (0.0, "11")
    thinking = records.grade_sample(make_raw_record("a", 0, "<|channel|>analysis<|message|>\\boxed{10}"))
    assert (thinking["correct"], thinking["answered"], thinking["has_final"]) == (0.0, 0.0, 0.0)
    assert thinking["reason"]


@pytest.mark.parametrize("prompt", ["What is 4 + 6?", "<|start|>user<|message|>What is 4 + 6?<|end|>"])
def test_a_formula_of_the_problem_is_no_answer_as_in_training(prompt):
    assert records.grade_sample(make_raw_record("a", 0, "\\boxed{4+6}", prompt=prompt))["correct"] == 0.0
    assert records.grade_sample(make_raw_record("a", 0, "\\boxed{4+6}"))["correct"] == 1.0
    assert "prompt" not in records.grade_sample(make_raw_record("a", 0, "\\boxed{10}", prompt=prompt))


def test_a_sample_that_the_grader_fails_on_is_not_graded(caplog):
    broken = records.grade_sample(make_raw_record("a", 3, None))
    assert broken["correct"] is None
    assert "sample 3 of a" in caplog.text


def make_graded_record(problem: str, correct: float | None, **changes) -> dict:
    return {"id": problem, "datasource": "sums", "correct": correct, "answered": 1.0, "has_final": 1.0,
            "truncated": 0.0, "response_length": 10, "answer_length": 4, **changes}  # fmt: skip


def test_metrics_are_means_over_problems_and_over_samples():
    samples = [
        *[make_graded_record("a", value) for value in (1.0, 0.0, 0.0, 0.0)],
        *[make_graded_record("b", value) for value in (1.0, 1.0)],
        make_graded_record(
            "c", 0.0, answered=0.0, has_final=0.0, truncated=1.0, response_length=80, answer_length=None
        ),
    ]
    result = records.summarize(samples, [1, 2, 4])
    assert result["exact_match"] == pytest.approx((1 / 4 + 1 + 0) / 3)
    assert result["pass_at_k"]["1"]["value"] == pytest.approx(result["exact_match"])
    assert result["pass_at_k"]["2"]["value"] == pytest.approx((1 / 2 + 1) / 2), "c has one sample"
    assert result["pass_at_k"]["4"]["value"] == 1
    assert (result["n"], result["samples"], result["ungraded"]) == (3, 7, 0)
    for name in ("truncated", "no_final", "no_answer"):
        assert result[name] == pytest.approx(1 / 7)
    assert result["response_length"] == pytest.approx(140 / 7)
    assert (result["thinking_length"], result["answer_length"]) == (pytest.approx((6 * 6 + 80) / 7), 4)
    assert 0 <= result["ci_low"] < result["exact_match"] < result["ci_high"] <= 1
    partly = records.summarize([make_graded_record("a", value) for value in (0.5, 0.9, 0.99, 1.0)], [1, 4])
    assert partly["exact_match"] == 0.25 and partly["pass_at_k"]["4"]["value"] == 1


@pytest.mark.parametrize("missing", [None, math.nan])
def test_ungraded_samples_count_as_neither_right_nor_wrong(missing):
    result = records.summarize(
        [make_graded_record("a", 1.0), make_graded_record("a", missing), make_graded_record("b", missing)], [1]
    )
    assert (result["exact_match"], result["n"], result["samples"], result["ungraded"]) == (1.0, 1, 3, 2)
    nothing = records.summarize([make_graded_record("a", missing)] * 2, [2])
    assert (nothing["exact_match"], nothing["ci_low"], nothing["ungraded"]) == (None, None, 2)
    assert nothing["pass_at_k"]["2"]["value"] is None


def test_records_with_any_text_are_read_back(tmp_path):
    file = tmp_path / "eval_0.jsonl"
    file.write_text('{"id": "a", "correct": 1.0, "response": "one\u2028two"}\n', encoding="utf-8")
    assert records.grades_by_problem(output.read_records(file)) == ("exact_match", {"a": [1.0]})
    file.write_text('{"id": "a"}\n')
    with pytest.raises(UserError, match=r"eval_0\.jsonl"):
        output.read_records(file)
    with pytest.raises(UserError, match=r"none\.jsonl"):
        output.read_records(tmp_path / "none.jsonl")


def test_sources_and_environments_are_reported_separately():
    samples = [
        make_graded_record("a", 1.0, environment="single", thinking_truncated=1.0),
        make_graded_record("b", 0.0, environment="python", datasource="aime", thinking_truncated=0.0, truncated=1.0),
        make_graded_record("c", 1.0),
    ]
    result = records.summarize_by_source(samples, [1])
    assert (result["thinking_truncated"], result["truncated"]) == (pytest.approx(1 / 2), pytest.approx(1 / 3))
    assert "thinking_truncated" not in records.summarize(samples[2:])
    assert result["exact_match"] == pytest.approx(2 / 3)
    assert {name: part["exact_match"] for name, part in result["by_source"].items()} == {"sums": 1.0, "aime": 0.0}
    parts = result["by_environment"]
    assert {name: part["exact_match"] for name, part in parts.items()} == {"single": 1.0, "python": 0.0}
    assert "by_environment" not in records.summarize_by_source(samples[2:], [1])
