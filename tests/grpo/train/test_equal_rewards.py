"""Groups without spread, from their responses on; test_advantages.py has the formulas."""

import math
from types import SimpleNamespace

import pytest
import torch

from grpo.train import advantages

from .made_batches import ESTIMATORS, make_arguments, make_batches


def make_plain_response(reward, length=3):
    """A response of so many tokens, as OpenRLHF's executor returns it; without any, the trainer has cut it off."""
    log_probs = [0.0, 0.0, *[-0.5] * length]
    return {
        "prompt": "p", "label": "", "reward": reward, "scores": reward, "truncated": False, "extra_logs": {},
        "observation_tokens": [3, 4, *range(5, 5 + length)], "action_ranges": [(2, 2 + length)],
        "rollout_log_probs": log_probs,
    }  # fmt: skip


def compute_advantages(monkeypatch, responses, group, estimator, **changes):
    """The advantage of each response's tokens; None without tokens to train on."""
    sizes = {"n_samples_per_prompt": group, "micro_rollout_batch_size": len(responses)}
    _, (batch,) = make_batches(responses, monkeypatch, estimator, **sizes | changes)
    assert batch.index == list(range(len(responses)))
    masks = batch.action_mask.bool()
    return [row[mask].unique() if mask.any() else None for row, mask in zip(batch.advantages, masks, strict=True)]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "gone",
    [make_plain_response(0.0, 0), make_plain_response(math.nan), make_plain_response(None)],
    ids=["no tokens", "NaN", "None"],
)
def test_a_sample_that_is_not_trained_on_counts_nowhere(monkeypatch, estimator, gone):
    """The others have the advantages of a group without it."""
    rest = [make_plain_response(1.0), make_plain_response(0.25, 2), make_plain_response(0.5)]
    whole = compute_advantages(monkeypatch, [rest[0], gone, *rest[1:]], 4, estimator)
    assert whole.pop(1) is None
    without = compute_advantages(monkeypatch, rest, 3, estimator)
    assert torch.cat(whole).tolist() == torch.cat(without).tolist()
    assert len(set(torch.cat(whole).tolist())) == 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_length_penalty_that_all_share_gives_no_spread(monkeypatch, estimator):
    """Every sample is at its limit, with half of the penalty; 0.7 - 0.35 is not exact in float32."""
    changes = {"overlong_buffer_len": 6.0, "overlong_penalty_factor": 0.7}
    made = compute_advantages(monkeypatch, [make_plain_response(0.7, 897)] * 6, 6, estimator, **changes)
    assert all(one.tolist() == [0.0] for one in made)


def test_a_spread_that_is_rounding_or_of_a_rollout_without_a_reward_is_none(monkeypatch):
    rewards = [0.6, 0.6000001, 0.6, 0.6, 0.6, math.nan, 0.6, 0.6, 0.6, 0.0, 0.6, 0.6]
    sizes = {"n_samples_per_prompt": 4, "micro_rollout_batch_size": 5}
    rollouts, _ = make_batches([make_plain_response(reward) for reward in rewards], monkeypatch, **sizes)
    args = SimpleNamespace(**vars(make_arguments()) | sizes)
    assert advantages.compute(rollouts, args).zero_spread_groups == pytest.approx(2 / 3)
