import json
from types import SimpleNamespace

import pytest
import torch

from grpo.run.sample_records import describe_samples, extremes

RIGHT = "\\boxed{7}"
TEXTS = {1: RIGHT, 2: RIGHT.replace("{7}", "{8}"), 3: "so"}


def make_sample(tokens: list[int], **logs: float) -> SimpleNamespace:
    """A sample of a prompt of two tokens."""
    size = 2 + len(tokens)
    return SimpleNamespace(
        prompts=["2+5"], labels=[json.dumps({"answer": "7", "split": "train"})],
        sequences=torch.tensor([[0, 0, *tokens]]), attention_mask=torch.ones(1, size),
        action_mask=torch.tensor([[0] + [1] * len(tokens)]),
        info={name: torch.tensor([value]) for name, value in {"response_length": len(tokens), **logs}.items()},
        details={"advantage": 0.5},
    )  # fmt: skip


TOKENIZER = SimpleNamespace(decode=lambda tokens, **_: TEXTS[tokens[0]], added_tokens_decoder={})


def test_a_record_has_texts_answer_gold_counts_and_numbers():
    one, two, three = describe_samples(
        [make_sample([1, 1, 1], reward=0.5), make_sample([2]), make_sample([3, 3])], TOKENIZER
    )
    assert one["prompt"] == "2+5" and one["response"] == RIGHT and one["gold"] == one["answer"] == "7"
    assert one["prompt_length"] == 2 and one["response_length"] == 3 and one["advantage"] == 0.5
    assert [record["sample"] for record in (one, two, three)] == [0, 1, 2]
    assert two["answer"] == "8" and three["answer"] is None
    json.dumps([one, two, three])


def test_a_rollout_in_an_environment_has_its_whole_conversation():
    last, before = make_sample([1]), make_sample([3, 3])
    last.branches = [before]
    tokenizer = SimpleNamespace(decode=lambda tokens, **_: " ".join(map(str, tokens)), added_tokens_decoder={})
    [record] = describe_samples([last], tokenizer)
    assert record["conversation"] == ["0 0 3 3", "0 0 1"]
    assert record["token_ids"] == [[0, 0, 3, 3], [0, 0, 1]]
    assert "conversation" not in describe_samples([make_sample([1])], tokenizer)[0]


def make_logs(**changes: list) -> list[dict]:
    return [dict(zip(changes, row, strict=True)) for row in zip(*changes.values(), strict=True)]


def test_each_extreme_is_found_and_the_first_of_equals():
    reasons = extremes(
        make_logs(
            correct=[0, 0, 1, 1, 0], reward=[0.1, 0.4, 0.6, 0.9, 0.4], response_length=[5, 5, 9, 9, 1],
            surprisal=[0.1, 0.2, 0.3, 0.4, 0.9], micro_batch_loss=[1.0, -8.0, 2.0, 7.0, 0.0],
        )
    )  # fmt: skip
    assert reasons == {
        1: ["highest reward of the wrong ones", "largest loss"],
        2: ["lowest reward of the right ones", "longest"],
        4: ["most surprising"],
    }


@pytest.mark.parametrize(("limit", "indices"), [(None, [0, 1, 2, 3]), (0, [3]), (2, [0, 1, 3])])
def test_limit_keeps_the_extremes(limit, indices):
    records = describe_samples(
        [make_sample([1]), make_sample([1]), make_sample([1]), make_sample([1, 1])], TOKENIZER, limit
    )
    assert [record["sample"] for record in records] == indices
    assert records[-1]["extremes"] == ["longest"]


def test_a_record_has_the_id_of_its_problem() -> None:
    problems = {make_sample([1]).prompts[0]: {"id": "sums-1", "datasource": "sums"}}
    [record] = describe_samples([make_sample([1])], TOKENIZER, None, problems)
    assert (record["id"], record["datasource"], record["sample"]) == ("sums-1", "sums", 0)
    assert "id" not in describe_samples([make_sample([1])], TOKENIZER)[0]
