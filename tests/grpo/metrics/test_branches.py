"""The metrics of rollouts whose history was rewritten: they are over the tokens of all their rows."""

from copy import deepcopy

import pytest
import torch
from torch.utils.data import DataLoader

from grpo.metrics import step_metrics
from grpo.metrics.token_recorder import MicroBatch
from grpo.train import micro_batches
from tests.grpo.train.made_batches import TOKENIZER, list_rows, make_four_rollouts


def test_the_metrics_of_a_step_are_over_the_tokens_of_all_samples_of_a_rollout(monkeypatch):
    rollouts, made = make_four_rollouts(monkeypatch)
    for batch in made:  # of the trainer: 0.01 nat above the engine, in the last branch of the last rollout 2 nats
        batch.action_log_probs = batch.rollout_log_probs + 0.01
    made[1].action_log_probs[2] = made[1].rollout_log_probs[2] - 2
    notes = []
    for batch in DataLoader(list_rows(deepcopy(made)), batch_size=2, collate_fn=micro_batches.join_rollouts):
        mask, empty = batch.action_mask.bool(), torch.zeros(int(batch.action_mask.sum()))
        sampled = batch.action_log_probs[mask]
        notes.append(MicroBatch(batch.index, mask.sum(-1).tolist(), 0.0, empty, sampled, empty, empty, empty))
    status = {"micro_batches": notes, "grad_norms": []}
    step_metrics.add_step_metrics(status, made, rollouts, TOKENIZER)
    parts = [[int(row.action_mask.sum()) for row in (*rollout.branches, rollout)] for rollout in rollouts]
    lengths = torch.tensor([sum(part) for part in parts]).double()
    advantages = torch.tensor([0.5, -0.5, 0.0, 0.0]).double()
    assert status["sampled_tokens"] == lengths.sum()
    assert status["response_length_p50"] == lengths.quantile(0.5)
    assert status["token_advantage_mean"] == pytest.approx(float((advantages * lengths).sum() / lengths.sum()))
    apart = parts[3][0]
    assert status["logprob_diff_max"] == pytest.approx(2.0)
    mean = float((2 * apart + 0.01 * (lengths.sum() - apart)) / lengths.sum())
    assert status["logprob_diff_mean"] == pytest.approx(mean, rel=1e-4)
    lowest = rollouts[3].details["least_likely_tokens"]
    assert [token["branch"] for token in lowest] == [0] * 3
    assert all(token["trainer"] == pytest.approx(token["engine"] - 2) for token in lowest)
