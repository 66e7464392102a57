"""Routings on their way from the response to the micro-batches of a rank."""

import pytest
import torch
from torch.utils.data import DataLoader

from grpo.train import micro_batches

from .made_batches import PLAIN, THOUGHTFUL, list_rows, make_batches, make_response

SHAPE = (3, 2)


def make_routing(tokens):
    """A routing that identifies its tokens and their positions; none for the last token."""
    values = (torch.tensor(tokens) + 7 * torch.arange(len(tokens))) % 250 + 1
    values[-1] = 0
    return values.to(torch.uint8)[:, None, None].expand(-1, *SHAPE).numpy()


def add_routing(made):
    for sample in (made, *made.get("branches", ())):
        sample["routing"] = make_routing(sample["observation_tokens"])
    return made


def make_responses(branching=True):
    scripts = [THOUGHTFUL if branching else PLAIN, PLAIN, PLAIN, THOUGHTFUL if branching else PLAIN]
    replies = [["a", "b", "c"], [], [], ["a"]]
    made = [make_response(*each) for each in zip(scripts, replies, [1.0, 0.0, 0.5, 0.5], strict=True)]
    return [add_routing(one) for one in made]


@pytest.mark.parametrize("branching", [True, False])
def test_every_row_keeps_its_own_routing(monkeypatch, branching):
    rollouts, made = make_batches(make_responses(branching=branching), monkeypatch)
    assert all(rollout.rewards.isfinite().all() for rollout in rollouts)
    seen = 0
    again = DataLoader(list_rows(made), batch_size=2, collate_fn=micro_batches.join_rollouts)  # a rank's
    for batch in [*made, *again]:
        assert len(batch.routing) == len(batch.sequences)
        for tokens, mask, routing in zip(batch.sequences, batch.attention_mask, batch.routing, strict=True):
            expected = torch.tensor(make_routing(tokens[mask.bool()].tolist()))
            assert torch.equal(routing, expected)
            seen += 1
    assert seen == 2 * sum(1 + len(rollout.branches) for rollout in rollouts)


@pytest.mark.parametrize("position", [0, 3, -2])
def test_a_rollout_with_a_token_without_routing_is_not_trained_on(monkeypatch, caplog, position):
    made = make_responses(branching=False)
    made[1]["routing"] = made[1]["routing"].copy()
    made[1]["routing"][position] = 0
    rollouts, _ = make_batches(made, monkeypatch)
    assert [float(rollout.info["token_mismatch"]) for rollout in rollouts] == [0, 1, 0, 0]
    assert f"no routing for the token at position {position % len(made[1]['routing'])}" in caplog.text
