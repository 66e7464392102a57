"""Rollouts with several samples on their way to the loss: micro-batches, advantages, a rank's rows."""

import math
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from grpo.metrics import step_metrics
from grpo.metrics.token_recorder import MicroBatch
from grpo.metrics.update_metrics import log_probs_by_sample
from grpo.train import micro_batches
from grpo.train.loss import PolicyLoss

from .made_batches import (
    PLAIN,
    THOUGHTFUL,
    TOKENIZER,
    list_rows,
    make_batches,
    make_four_rollouts,
    make_response,
)


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "group_norm"])
def test_baselines_count_rollouts_and_branches_share_the_advantage(monkeypatch, estimator):
    rollouts, made = make_four_rollouts(monkeypatch, estimator)
    assert [len(rollout.branches) for rollout in rollouts] == [3, 0, 0, 1]
    _, single = make_four_rollouts(monkeypatch, estimator, branching=False)
    for batch, plain in zip(made, single, strict=True):
        assert batch.index[:2] == plain.index and torch.equal(batch.rewards, plain.rewards)
        for row, number in enumerate(batch.index):
            of_plain, mask = plain.index.index(number), batch.action_mask[row].bool()
            want = plain.advantages[of_plain][plain.action_mask[of_plain].bool()][0]
            assert mask.any() and (batch.advantages[row][mask] == want).all()
        assert torch.equal(batch.info["group_reward_std"], plain.info["group_reward_std"])


def test_token_records_of_ranks_are_matched_to_their_rollouts(monkeypatch):
    """Each row of a micro-batch by its rollout, a rollout's branches before its last sample."""
    rollouts, made = make_four_rollouts(monkeypatch)
    by_number = {}
    for batch in DataLoader(list_rows(made), batch_size=2, collate_fn=micro_batches.collate):
        mask, log_probs = batch.action_mask.bool(), -batch.sequences[:, 1:] / 100.0
        numbers = batch.index
        empty = torch.zeros(0)
        note = MicroBatch(numbers, mask.sum(-1).tolist(), 0.0, empty, log_probs[mask], empty, empty, empty)
        assert len(numbers) == 2 + sum(len(rollouts[number].branches) for number in set(numbers))
        by_number |= log_probs_by_sample([note])
    for number, rollout in enumerate(rollouts):
        assert by_number[number].tolist() == torch.cat([-tokens / 100.0 for tokens, *_ in list_parts(rollout)]).tolist()


def list_parts(rollout):
    """The sampled tokens of each sample of a rollout, and the engine's log-probs of them."""
    for row in (*rollout.branches, rollout):
        mask = row.action_mask.bool()
        yield row.sequences[:, 1:][mask], row.rollout_log_probs[mask]


def test_the_metrics_of_a_step_are_over_the_tokens_of_all_samples_of_a_rollout(monkeypatch):
    rollouts, made = make_four_rollouts(monkeypatch)
    for batch in made:  # of the trainer: 0.01 nat above the engine, in the last branch of the last rollout 2 nats
        batch.action_log_probs = batch.rollout_log_probs + 0.01
    made[1].action_log_probs[2] = made[1].rollout_log_probs[2] - 2
    notes = []
    for batch in DataLoader(list_rows(deepcopy(made)), batch_size=2, collate_fn=micro_batches.collate):
        mask, tokens = batch.action_mask.bool(), int(batch.action_mask.sum())
        numbers, empty = batch.index, torch.zeros(tokens)
        noted = batch.action_log_probs[mask]
        lengths = mask.sum(-1).tolist()
        notes.append(MicroBatch(numbers, lengths, 0.0, empty, noted, empty, empty, empty))
    status = {"micro_batches": notes, "grad_norms": []}
    step_metrics.add_step_metrics(status, made, rollouts, TOKENIZER)
    parts = [list(list_parts(rollout)) for rollout in rollouts]
    lengths = torch.tensor([sum(len(tokens) for tokens, _ in part) for part in parts]).double()
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0]).double()
    assert status["sampled_tokens"] == lengths.sum()
    assert status["response_length_p50"] == lengths.quantile(0.5)
    assert status["token_advantage_mean"] == pytest.approx(float((advantages * lengths).sum() / lengths.sum()))
    apart = sum(len(tokens) for tokens, _ in parts[3][:1])
    assert status["logprob_diff_max"] == pytest.approx(2.0)
    assert status["logprob_diff_mean"] == pytest.approx(
        float((2 * apart + 0.01 * (lengths.sum() - apart)) / lengths.sum()), rel=1e-4
    )
    lowest = rollouts[3].details["least_likely_tokens"]
    assert [token["branch"] for token in lowest] == [0] * 3 and all(
        token["trainer"] == pytest.approx(token["engine"] - 2) for token in lowest
    )


def test_untrained_samples_are_excluded_from_token_metrics(monkeypatch):
    rollouts, made = make_batches(
        [make_response(PLAIN, [], 1.0), make_response(THOUGHTFUL, ["a"], math.nan)], monkeypatch
    )
    length = int(rollouts[0].action_mask.sum())
    values = torch.full((length,), -1.0)
    status = {"micro_batches": [MicroBatch([0], [length], 0.0, *[values] * 5)], "grad_norms": [1.0]}
    step_metrics.add_step_metrics(status, made, rollouts, TOKENIZER)
    assert status["sampled_tokens"] == status["response_length_p50"] == length
    trained, untrained = (rollout.details["least_likely_tokens"] for rollout in rollouts)
    assert [token["trainer"] for token in trained] == [-1] * 3
    assert {token["trainer"] for token in untrained} == {None}


@pytest.mark.parametrize("micro", [1, 2])
def test_branches_do_not_change_micro_batches(monkeypatch, micro):
    rollouts, made = make_four_rollouts(monkeypatch)
    assert len(list_rows(made)) == 4
    batches = list(DataLoader(list_rows(made), batch_size=micro, shuffle=False, collate_fn=micro_batches.collate))
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
    for batch in batches:  # logs are means over rollouts
        assert batch.info and all(len(values) == micro for values in batch.info.values())


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_the_loss_counts_a_rollout_once_with_any_number_of_samples(monkeypatch, aggregation, micro):
    """In float64, over the rollouts, for any batching"""
    rollouts, made = make_four_rollouts(monkeypatch)
    made[1].advantages = made[1].advantages + 0.25 * made[1].action_mask
    lengths = [sum(len(tokens) for tokens, _ in list_parts(rollout)) for rollout in rollouts]
    assert len({len(rollout.branches) for rollout in rollouts}) == 3 and len(set(lengths)) > 1
    ranks = SimpleNamespace(world_size=1, micro_batches=4 // micro, sum=lambda values: values)
    args = SimpleNamespace(
        loss_aggregation=aggregation, generate_max_len=900, policy_loss_type="ppo", eps_clip_low_high=(0.2, 0.2),
        dual_clip=None, enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip
    loss, total, steps = PolicyLoss(args), 0.0, torch.zeros(0)
    loader = DataLoader(list_rows(made), batch_size=micro, shuffle=True, collate_fn=micro_batches.collate)
    for batch in loss.batches(loader, ranks):
        moved = (batch.action_log_probs + 0.05).requires_grad_()
        value = loss(moved, batch.action_log_probs, batch.advantages, action_mask=batch.action_mask)
        (value / ranks.micro_batches).backward()
        total += float(value) / ranks.micro_batches
        steps = torch.cat([steps, moved.grad[batch.action_mask.bool()]])
    advantages = torch.tensor([0.5, -0.5, 0.25, 0.25], dtype=torch.float64)
    sampled = torch.tensor(lengths)
    of_token = {"sequence_mean": 1 / (4 * sampled), "token_mean": 1 / sampled.sum()}.get(aggregation, 1 / (4 * 900))
    of_token = -torch.tensor(0.05, dtype=torch.float64).exp() * advantages * of_token
    assert total == pytest.approx(float((of_token * sampled).sum()), rel=1e-4)
    tokens = of_token.repeat_interleave(sampled)
    torch.testing.assert_close(steps.double().sort().values, tokens.sort().values, rtol=1e-4, atol=1e-9)


def test_the_length_of_a_response_counts_sampled_tokens_of_all_samples(monkeypatch):
    rollouts, _ = make_four_rollouts(monkeypatch)
    for rollout in rollouts:
        counted = sum(int(row.action_mask.sum()) for row in (rollout, *rollout.branches))
        assert int(rollout.info["response_length"]) == counted
