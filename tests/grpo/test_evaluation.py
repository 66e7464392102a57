import json
import math
from types import SimpleNamespace

import pytest
import torch

from eval.records import summarise
from grpo import evaluation


class Tokenizer:
    """Decodes tokens to their numbers."""

    def decode(self, tokens, skip_special_tokens):
        assert not skip_special_tokens
        return " ".join(map(str, tokens.tolist()))


def sample(prompt: str, score: float, **logs: float) -> SimpleNamespace:
    numbers = {"truncated": 0.0, "response_length": 2.0, **logs}
    return SimpleNamespace(
        prompts=[prompt], labels=["7"], scores=torch.tensor([score]),
        sequences=torch.tensor([[5, 6, 7]]), action_mask=torch.ones(1, 2),
        info={key: torch.tensor([value]) for key, value in numbers.items()},
    )  # fmt: skip


PROBLEMS = {"<a>": {"id": "a", "datasource": "sums"}, "<b>": {"id": "b", "datasource": "sums"}}


def test_records_have_the_problems_the_samples_and_the_grades():
    samples = [sample("<b>", 0.0, correct=1.0), sample("<b>", 0.0, correct=0.0), sample("<a>", 0.0, correct=1.0)]
    records = evaluation.describe(samples, Tokenizer(), PROBLEMS)
    assert [(record["id"], record["sample"], record["correct"]) for record in records] == [
        ("b", 0, 1.0), ("b", 1, 0.0), ("a", 0, 1.0),
    ]  # fmt: skip
    assert {record["response"] for record in records} == {"6 7"}


def test_exact_match_is_correctness_and_not_the_reward():
    scores = [sample("<a>", 0.2, correct=1.0), sample("<b>", 0.9, correct=0.0)]
    assert summarise(evaluation.describe(scores, Tokenizer(), PROBLEMS))["exact_match"] == 0.5


def test_without_correctness_the_score_is_taken():
    [record] = evaluation.describe([sample("<a>", 1.0)], Tokenizer(), PROBLEMS)
    assert record["correct"] == 1.0


def test_a_sample_that_the_reward_failed_on_is_ungraded():
    records = evaluation.describe([sample("<a>", math.nan, correct=math.nan)], Tokenizer(), PROBLEMS)
    assert summarise(records)["ungraded"] == 1


@pytest.mark.parametrize("named", [True, False])
def test_problems_are_found_by_the_prompts_that_the_engines_get(tmp_path, named):
    rows = [{"prompt": name, "label": "7", **({"id": name} if named else {})} for name in "abc"]
    (tmp_path / "eval.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    trainer = SimpleNamespace(
        args=SimpleNamespace(eval_dataset=str(tmp_path / "eval.jsonl")),
        eval_dataloader=[(["sums"], [f"<{name}>"], ["7"]) for name in "ab"],  # cut by --max_samples
    )
    found = evaluation.problems_by_prompt(trainer)
    assert list(found) == ["<a>", "<b>"]
    assert {problem["datasource"] for problem in found.values()} == {"sums"}
    ids = [problem["id"] for problem in found.values()]
    assert ids == ["a", "b"] if named else len(set(ids)) == 2
    assert found == evaluation.problems_by_prompt(trainer)
