"""Rollouts with several samples on their way to the loss: micro-batches, advantages, a rank's rows."""

from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

from grpo.train import micro_batches

from .made_batches import list_rows, make_four_rollouts


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "group_norm"])
def test_baselines_count_rollouts_and_branches_share_the_advantage(monkeypatch, estimator):
    rollouts, made = make_four_rollouts(monkeypatch, estimator)
    assert [len(rollout.branches) for rollout in rollouts] == [3, 0, 0, 1]
    assert [batch.index for batch in made] == [[0, 1, 0, 0, 0], [2, 3, 3]]
    _, single = make_four_rollouts(monkeypatch, estimator, branching=False)
    for batch, plain in zip(made, single, strict=True):
        assert batch.index[:2] == plain.index and torch.equal(batch.rewards, plain.rewards)
        for row, number in enumerate(batch.index):
            of_plain, mask = plain.index.index(number), batch.action_mask[row].bool()
            want = plain.advantages[of_plain][plain.action_mask[of_plain].bool()][0]
            assert mask.any() and (batch.advantages[row][mask] == want).all()
        assert torch.equal(batch.info["group_reward_std"], plain.info["group_reward_std"])


@pytest.mark.parametrize("micro", [1, 2])
def test_branches_do_not_change_micro_batches(monkeypatch, micro):
    rollouts, made = make_four_rollouts(monkeypatch)
    assert len(list_rows(made)) == 4
    batches = list(DataLoader(list_rows(made), batch_size=micro, shuffle=False, collate_fn=micro_batches.join_rollouts))
    assert len(batches) == 4 // micro
    assert sum(len(batch.sequences) for batch in batches) == 8
    # Each sampled token of each rollout is there once, with its log-prob from the engine.
    trained = Counter(
        (row[1:][: len(mask)][mask.bool()].tolist().__repr__(), log_probs[mask.bool()].tolist().__repr__())
        for batch in batches
        for row, mask, log_probs in zip(batch.sequences, batch.action_mask, batch.rollout_log_probs, strict=True)
    )
    sampled = Counter(
        (row.sequences[0, 1:][row.action_mask[0].bool()].tolist().__repr__(),
         row.rollout_log_probs[0][row.action_mask[0].bool()].tolist().__repr__())
        for rollout in rollouts
        for row in (rollout, *rollout.branches)
    )  # fmt: skip
    assert trained == sampled
    rows = [row for batch in batches for row in batch.sequences[:micro]]
    for row, rollout in zip(rows, rollouts, strict=True):  # their own rows come before all branches
        assert torch.equal(row[: rollout.sequences.shape[1]], rollout.sequences[0])
    for batch in batches:  # logs are means over rollouts
        assert batch.info and all(len(values) == micro for values in batch.info.values())
