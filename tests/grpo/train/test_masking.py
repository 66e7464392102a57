"""Rollouts that count in their group and not in the loss: cut ones, and those of groups without spread."""

import math

import pytest
import torch

from grpo.train.worker import PolicyWorker

from .made_batches import ESTIMATORS, PLAIN, THOUGHTFUL, make_batches, make_plain_response, make_response


def find_hidden(batches) -> list[bool]:
    """Say of each rollout whether a rank sees none of its tokens."""
    rank = object.__new__(PolicyWorker)
    rank.rollouts = []
    for batch in batches:
        rank.append(batch)
    return [not any(row.action_mask.any() for row in rows) for rows in rank.rollouts]


def make_one_batch(monkeypatch, responses, *estimator, **masks):
    sizes = {"n_samples_per_prompt": len(responses) // 2, "micro_rollout_batch_size": len(responses)}
    return make_batches(responses, monkeypatch, *estimator, **sizes | masks)[1]


CUT = {"truncated": True}


def make_two_groups() -> list[dict]:
    """A group with spread, of which one rollout is cut, one has no reward, and one neither; and one without spread."""
    return [
        make_plain_response(0.0, 5) | CUT,
        make_plain_response(1.0),
        make_plain_response(math.nan) | CUT,
        *[make_plain_response(0.5)] * 2,
        make_plain_response(0.5, 9) | CUT,
    ]


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if not name.startswith("reinforce")])
def test_what_is_masked_keeps_its_advantage_and_loses_its_tokens(monkeypatch, estimator):
    masks, marked = {"mask_truncated": True}, [1, 0, 0, 0, 0, 1]
    (free,), (batch,) = (make_one_batch(monkeypatch, make_two_groups(), estimator, **each) for each in ({}, masks))
    assert torch.equal(batch.advantages, free.advantages) and free.advantages[:2].any(), "the mean is that of all"
    assert torch.equal(batch.action_mask, free.action_mask), "the controller's metrics see them"
    assert batch.info["masked_rollouts"].tolist() == marked and "masked_rollouts" not in free.info
    assert find_hidden([free]) == [False, False, True, False, False, False], "without a reward it takes no part anyway"
    assert find_hidden([batch]) == [bool(mark) or number == 2 for number, mark in enumerate(marked)]


def test_branches_are_hidden_with_their_rollout(monkeypatch):
    cut = make_response(THOUGHTFUL, ["a", "b", "c"], 0.0) | CUT
    responses = [
        cut,
        make_response(PLAIN, [], 1.0),
        make_response(THOUGHTFUL, ["a"], 0.0),
        make_response(PLAIN, [], 1.0),
    ]
    [batch] = make_one_batch(monkeypatch, responses, mask_truncated=True)
    assert batch.index == [0, 1, 2, 3, 0, 0, 0, 2]
    assert find_hidden([batch]) == [True, False, False, False]
