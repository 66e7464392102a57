import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.stack.problem import UserError
from grpo.train import rewards


def make_sample(reward=0.0, score=None, **logs):
    reward = rewards.scalar(reward)
    return SimpleNamespace(
        rewards=torch.tensor([reward]),
        scores=torch.tensor([reward if score is None else score]),
        info={"reward": torch.tensor([reward]), **{key: torch.tensor([value]) for key, value in logs.items()}},
    )


@pytest.mark.parametrize("value", [1, True, 0.25, [3, 9], torch.tensor([[2.0]]), torch.tensor(4), np.float32(0.5)])
def test_scalar_of_numbers(value):
    assert rewards.scalar(value) == float(value[0] if isinstance(value, list) else value)


@pytest.mark.parametrize("value", [None, "high", [], {}, object(), float("nan"), torch.tensor([])])
def test_scalar_of_anything_else_is_nan(value):
    assert math.isnan(rewards.scalar(value))


def test_score_of_zero_is_kept():
    assert rewards.read_score({"scores": 0.0, "rewards": 0.7}) == 0.0
    assert rewards.read_score({"rewards": 0.7}) == 0.7


@given(st.lists(st.sampled_from([None, math.inf]) | st.floats(-1, 1), min_size=4, max_size=4))
def test_missing_rewards_are_counted_and_stay_missing(values):
    group = [make_sample(reward) for reward in [*values, 0.5, 0.5, 0.5, 0.5]]
    rewards.complete(group, group_size=4)
    for value, s in zip(values, group, strict=False):
        assert s.info["reward_missing"].item() == float(value in (None, math.inf))
        if value in (None, math.inf):
            assert s.rewards.isnan()
        else:
            assert s.rewards.item() == pytest.approx(value)


def test_the_mean_of_a_step_covers_only_samples_with_a_reward_or_a_score():
    """A group without any known reward is not a group of failures. A reward without a score is the score, too."""
    rewarded = (None, None, None, None, 0.25, None, 1.0, 0.25)
    scored = (None, None, None, math.nan, 1.0, math.nan, None, 0.25)
    samples = [make_sample(reward, score=score) for reward, score in zip(rewarded, scored, strict=True)]
    for s in samples:
        s.info["score"] = s.scores.clone()
    rewards.complete(samples, group_size=4)
    for name, mean in (("reward", 0.5), ("score", 0.75)):
        assert torch.cat([s.info[name] for s in samples]).mean().item() == pytest.approx(mean), name


@pytest.mark.parametrize(
    ("logs", "named"),
    [
        ([{}, {}], "reward function"),
        ([{"token_mismatch": 1.0}] * 2, "--actor_learning_rate"),
        ([{"ended_by_error": 1.0}, {"ended_by_error": 0.0}], "--check"),
        ([{"ended_by_error": 0.0, "ended_by_length": 1.0}, {"ended_by_error": 0.0}], "--prompt_max_len"),
        ([{"ended_by_error": 0.0, "ended_by_time": 1.0}, {"token_mismatch": 2.0}], "--rollout_seconds"),
    ],
)
def test_a_batch_without_any_reward_stops_the_run_and_says_why(logs, named):
    with pytest.raises(UserError) as raised:
        rewards.complete([make_sample(None, **each) for each in logs], group_size=2)
    assert named in f"{raised.value} {raised.value.problem.remedy}"
    rewards.complete([make_sample(None, **logs[0]), make_sample(1.0, **logs[1])], group_size=2)  # one suffices


def make_judged_sample(correct, quality):
    """A sample whose judge failed if quality is None."""
    failed = float(quality is None)
    reward = correct if quality is None else 0.6 * correct + 0.4 * quality
    return make_sample(reward, correct, correct=correct, judge_failed=failed, judge_quality=quality or math.nan)


def make_groups():
    return [
        make_judged_sample(1.0, 0.5),
        make_judged_sample(0.0, None),
        make_judged_sample(1.0, 0.25),
        make_judged_sample(0.0, 0.5),
    ], [make_judged_sample(1.0, 0.5) for _ in range(4)]


@pytest.mark.parametrize("is_lacking", [False, True])
def test_partly_judged_group_is_compared_by_correctness(monkeypatch, is_lacking):
    """Even if a sample of another group lacks the log of the judge."""
    monkeypatch.setenv("GRPO_JUDGE_FALLBACK", "group")
    hit, whole = make_groups()
    if is_lacking:
        del whole[0].info["judge_failed"]
    rewards.complete([*hit, *whole], group_size=4)
    assert torch.cat([s.rewards for s in hit]).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert torch.cat([s.info["reward"] for s in hit]).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert torch.cat([s.rewards for s in whole]).tolist() == pytest.approx([0.8] * 4)
    assert [s.info["judge_regrouped"].item() for s in (*hit, *whole)] == [1.0] * 4 + [0.0] * 4


@pytest.mark.parametrize("policy", ["correctness", "mean_quality", None])
def test_other_policies_do_not_change_the_group(monkeypatch, policy):
    monkeypatch.delenv("GRPO_JUDGE_FALLBACK", raising=False)
    if policy:
        monkeypatch.setenv("GRPO_JUDGE_FALLBACK", policy)
    hit, _ = make_groups()
    rewards.complete(hit, group_size=4)
    assert torch.cat([s.rewards for s in hit]).tolist() == pytest.approx([0.8, 0.0, 0.7, 0.2])
    assert "judge_regrouped" not in hit[0].info


def test_a_sample_that_was_not_graded_stays_missing_in_its_group(monkeypatch):
    monkeypatch.setenv("GRPO_JUDGE_FALLBACK", "group")
    hit, _ = make_groups()
    hit[0] = make_sample(math.nan, correct=math.nan, judge_failed=0.0, judge_quality=math.nan)
    rewards.complete(hit, group_size=4)
    assert torch.cat([s.rewards for s in hit]).tolist() == pytest.approx([math.nan, 0.0, 1.0, 0.0], nan_ok=True)
    assert hit[0].info["reward_missing"].item() == 1.0


def test_permanently_failing_judge_does_not_stop_training(monkeypatch):
    """Under mean_quality, before there is a mean."""
    monkeypatch.setenv("GRPO_JUDGE_FALLBACK", "mean_quality")
    samples = [make_sample(math.nan, float(n % 2), correct=float(n % 2), judge_failed=1.0) for n in range(8)]
    rewards.complete(samples, group_size=4)
    assert torch.cat([s.rewards for s in samples]).isnan().all() and samples[1].scores == 1.0
