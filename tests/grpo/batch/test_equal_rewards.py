"""Groups without spread: nobody is better than the others, so nothing is learned."""

import math

import pytest
import torch

from .made_experiences import ESTIMATORS, made_experiences


def plain(reward, length=3):
    """A response of so many tokens, as OpenRLHF's executor returns it; without any, the trainer has cut it off."""
    log_probs = [0.0, 0.0, *[-0.5] * length]
    return {
        "prompt": "p", "label": "", "reward": reward, "scores": reward, "truncated": False, "extra_logs": {},
        "observation_tokens": [3, 4, *range(5, 5 + length)], "action_ranges": [(2, 2 + length)],
        "rollout_log_probs": log_probs,
    }  # fmt: skip


def advantages(monkeypatch, responses, group, estimator, **changes):
    """The advantage of each response's tokens; None without tokens to train on."""
    sizes = {"n_samples_per_prompt": group, "micro_rollout_batch_size": len(responses)}
    _, (batch,) = made_experiences(responses, monkeypatch, estimator, **sizes | changes)
    assert batch.index == list(range(len(responses)))
    masks = batch.action_mask.bool()
    return [row[mask].unique() if mask.any() else None for row, mask in zip(batch.advantages, masks, strict=True)]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reward", [0.1, 0.6, 0.8, 1 / 3, 1e6 / 3, 1e-6 / 3])
@pytest.mark.parametrize("group", [7, 8, 64])
def test_equal_rewards_have_no_advantage(monkeypatch, estimator, reward, group):
    made = advantages(monkeypatch, [plain(reward, 1 + number % 5) for number in range(2 * group)], group, estimator)
    assert all(one.tolist() == [0.0] for one in made)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "reinforce"])
def test_a_group_in_which_all_are_right_is_not_punished_beside_one_with_spread(monkeypatch, estimator):
    """Its tokens are longer, so that the mean over tokens is not 0."""
    made = advantages(monkeypatch, [plain(0.8, 9)] * 4 + [plain(1.0), plain(0.0, 8)] * 2, 4, estimator)
    assert [one.tolist() for one in made[:4]] == [[0.0]] * 4
    assert all(abs(one.item()) > 0.4 for one in made[4:])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "rewards",
    [
        [0.6, 0.6000001, 0.6, 0.5999999],
        [0.1 + 0.2 - 0.3, 0.0, 0.3 - 0.1 - 0.2, 0.0],
        [1e5, 1e5 + 0.01, 1e5, 1e5],
    ],
    ids=["last bits", "a sum that cancels", "large"],
)
def test_a_spread_that_is_rounding_is_none(monkeypatch, estimator, rewards):
    made = advantages(monkeypatch, [plain(reward) for reward in rewards], 4, estimator, reward_clip_range=(-1e9, 1e9))
    assert all(one.tolist() == [0.0] for one in made)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_small_spread_that_is_no_rounding_counts(monkeypatch, estimator):
    made = advantages(monkeypatch, [plain(reward) for reward in (0.6, 0.6001, 0.6, 0.6)], 4, estimator)
    assert made[1] > 0 > made[0] or estimator == "reinforce"
    assert made[1] > made[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("gone", [plain(0.0, 0), plain(math.nan), plain(None)], ids=["no tokens", "NaN", "None"])
def test_a_sample_that_is_not_trained_on_counts_nowhere(monkeypatch, estimator, gone):
    """The others have the advantages of a group without it."""
    rest = [plain(1.0), plain(0.25, 2), plain(0.5)]
    whole = advantages(monkeypatch, [rest[0], gone, *rest[1:]], 4, estimator)
    assert whole.pop(1) is None
    without = advantages(monkeypatch, rest, 3, estimator)
    assert torch.cat(whole).tolist() == torch.cat(without).tolist()
    assert len(set(torch.cat(whole).tolist())) == 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_length_penalty_that_all_share_gives_no_spread(monkeypatch, estimator):
    """Every sample is at its limit, with half of the penalty; 0.7 - 0.35 is not exact in float32."""
    changes = {"overlong_buffer_len": 6.0, "overlong_penalty_factor": 0.7}
    made = advantages(monkeypatch, [plain(0.7, 897)] * 6, 6, estimator, **changes)
    assert all(one.tolist() == [0.0] for one in made)
