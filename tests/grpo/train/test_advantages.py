"""Every estimator against its formula in float64, token by token, in plain Python."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.train import advantages

from .made_batches import ESTIMATORS

CONSTANTS = (0.0, 0.1, 0.6, 0.8, 1 / 3, 1.0, -0.7, 1e6 / 3, 1e30, 1e-30)
WIDTH = 7  # positions of a row


@st.composite
def groups(draw, size: int) -> list[float]:
    """The rewards of a group: one constant, a few values, or any numbers of one magnitude."""
    if draw(st.booleans()):
        return [draw(st.sampled_from(CONSTANTS))] * size
    values = draw(st.sampled_from((st.floats(-1, 1), st.sampled_from((0.0, 0.6, 0.8, 1.0)))))
    scale = draw(st.sampled_from((1e-5, 1.0, 1e3, 1e20)))
    return [scale * reward for reward in draw(st.lists(values, min_size=size, max_size=size))]


@st.composite
def steps(draw) -> list[list[float]]:
    size = draw(st.integers(2, 64))
    return draw(st.lists(groups(size), min_size=1, max_size=4))


def make_rollout(reward, mask: list[float], kl: list[float], missing: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(
        rewards=torch.as_tensor(reward).view(1), action_mask=torch.tensor([mask]), kl=torch.tensor([kl]),
        info={"reward_missing": torch.tensor([missing])},
    )  # fmt: skip


def draw_rollouts(step: list[list[float]], dtype: torch.dtype, seed: int) -> list[SimpleNamespace]:
    """The rollouts of a step, of which some have no reward or no tokens."""
    draw, rollouts = random.Random(seed), []
    for reward in (reward for group in step for reward in group):
        mask = [float(draw.random() < 0.5) for _ in range(WIDTH)] if draw.random() < 0.9 else [0.0] * WIDTH
        missing = float(draw.random() < 0.2)
        given_reward = torch.tensor(math.nan if missing else reward, dtype=dtype)
        rollouts.append(make_rollout(given_reward, mask, [draw.gauss(0, 0.1) for _ in range(WIDTH)], missing))
    return rollouts


def give_advantages(rollouts: list[SimpleNamespace], args: SimpleNamespace, seed: int = 0) -> list[SimpleNamespace]:
    """Micro-batches of rollouts in any order and size, with their advantages."""
    draw, batches = random.Random(seed), []
    made = advantages.compute(rollouts, args)
    order = draw.sample(range(len(rollouts)), len(rollouts))
    while order:
        count = draw.randint(1, 9)
        index, order = order[:count], order[count:]
        mask, kl = (torch.cat([getattr(rollouts[number], name) for number in index]) for name in ("action_mask", "kl"))
        batches.append(SimpleNamespace(index=index, prompts=index, action_mask=mask, kl=kl, info={}))
    advantages.assign_to_tokens(batches, made, args)
    return batches


def list_by_rollout(batches: list[SimpleNamespace], name: str) -> list[float]:
    """A log of the rollouts, in their order."""
    found = {number: float(batch.info[name][row]) for batch in batches for row, number in enumerate(batch.index)}
    return [found[number] for number in sorted(found)]


def make_arguments(estimator: str, size: int, **changes) -> SimpleNamespace:
    values = {
        "gamma": 1.0, "reward_clip_range": (-10, 10), "no_advantage_std_norm": False, "init_kl_coef": 0.0,
        "mask_truncated": False, "overlong_buffer_len": None, "stop_properly_penalty_coef": None,
    }  # fmt: skip
    return SimpleNamespace(advantage_estimator=estimator, n_samples_per_prompt=size, **values | changes)


def is_equal(rewards: list[float]) -> bool:
    return not rewards or max(rewards) - min(rewards) <= 1e-6 * max(1.0, *map(abs, rewards))


def apply_formula(rewards: list[float], estimator: str) -> list[float]:
    """The formula of a group with spread."""
    mean, others = math.fsum(rewards) / len(rewards), len(rewards) - 1
    if estimator == "group_norm":
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / others)
        return [(reward - mean) / deviation for reward in rewards]
    if estimator == "rloo":
        total = math.fsum(rewards)
        return [reward - math.fsum([total, -reward]) / others for reward in rewards]
    return [reward - mean for reward in rewards]


def compute_advantages(made: list[SimpleNamespace], args: SimpleNamespace) -> dict[int, list[float]]:
    """The advantage of each sampled token of each rollout that is trained on."""
    (low, high), beta = args.reward_clip_range, args.init_kl_coef
    rollouts = {}
    for number, one in enumerate(made):
        mask = one.action_mask[0] > 0
        if mask.any() and not one.info["reward_missing"]:
            rollouts[number] = (one.rewards.item(), mask.nonzero().flatten().tolist(), one.kl[0][mask].tolist())
    if args.advantage_estimator == "reinforce":
        members = [list(rollouts)]
    else:
        members = [[n for n in rollouts if n // args.n_samples_per_prompt == group] for group in range(4)]
    value, with_spread = {}, set()
    for group in members:
        rewards = [rollouts[number][0] for number in group]
        if args.advantage_estimator == "reinforce":
            rewards = [min(max(reward, low), high) for reward in rewards]
        if is_equal(rewards):
            value |= dict.fromkeys(group, 0.0)
            continue
        with_spread |= set(group)
        if args.advantage_estimator != "reinforce":
            rewards = [min(max(one, low), high) for one in apply_formula(rewards, args.advantage_estimator)]
        value |= dict(zip(group, rewards, strict=True))
    result = {}
    for number, (_, at, kl) in rollouts.items():
        earned = [-beta * one for one in kl]
        earned[-1] += value[number]
        result[number] = [
            math.fsum(args.gamma ** (later - now) * e for later, e in zip(at, earned, strict=True) if later >= now)
            for now in at
        ]
    if args.advantage_estimator in ("reinforce", "reinforce_baseline") and with_spread:
        tokens = [token for values in result.values() for token in values]
        mean = math.fsum(tokens) / len(tokens)
        scale = math.sqrt(math.fsum((token - mean) ** 2 for token in tokens) / len(tokens))
        scale = 1.0 if args.no_advantage_std_norm else scale
        result = {
            number: [(token - mean * (number in with_spread)) / scale for token in values]
            for number, values in result.items()
        }
    return result


def find_largest_difference(step, dtype, seed, args) -> float:
    """The largest difference from the formula, as a share of the step's largest advantage or of 1."""
    rollouts = draw_rollouts(step, dtype, seed)
    expected = compute_advantages(rollouts, args)
    worst, largest = 0.0, max([1.0, *(abs(token) for values in expected.values() for token in values)])
    for batch in give_advantages(rollouts, args, seed):
        assert batch.advantages.dtype == torch.float32
        assert batch.advantages.isfinite().all() and batch.kl is None
        for row, number in enumerate(batch.index):
            mask = batch.action_mask[row] > 0
            assert mask.any() == (number in expected) and not batch.advantages[row][~mask].any()
            if number not in expected:
                continue
            got = batch.advantages[row][mask].tolist()
            if not args.init_kl_coef and not any(expected[number]):
                assert not any(got), "not about 0 but 0"
            differences = [abs(one - other) for one, other in zip(got, expected[number], strict=True)]
            worst = max(worst, *differences)
    return worst / largest


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(
    steps(),
    st.sampled_from((torch.float32, torch.bfloat16)),
    st.integers(0, 10_000),
    st.sampled_from((0.0, 0.05)),
    st.booleans(),
)
def test_every_estimator_is_its_formula(estimator, step, dtype, seed, beta, is_other):
    changes = {"reward_clip_range": (-0.5, 1.5), "no_advantage_std_norm": True} if is_other else {}
    if estimator == "reinforce" and is_other:
        changes["gamma"] = 0.9
    args = make_arguments(estimator, len(step[0]), init_kl_coef=beta, **changes)
    assert find_largest_difference(step, dtype, seed, args) < 2e-7


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kl_of_the_reward_stays_without_spread(estimator):
    """It is no comparison of rollouts. The sum over what a token and the later ones cost, times the factor."""
    rollouts = [
        make_rollout(0.6, [0.0, 1.0, 1.0], [9.0, 0.1, 0.2]),
        make_rollout(0.6, [0.0, 1.0, 0.0], [9.0, 0.3, 9.0]),
    ]
    batches = give_advantages(rollouts, make_arguments(estimator, 2, init_kl_coef=0.5))
    got = {n: b.advantages[row][b.action_mask[row] > 0] for b in batches for row, n in enumerate(b.index)}
    torch.testing.assert_close(got, {0: torch.tensor([-0.15, -0.1]), 1: torch.tensor([-0.15])})
    assert list_by_rollout(batches, "return") == pytest.approx([-0.15, -0.15])


def test_logs_are_those_of_the_rollouts_that_count():
    rewards, masks = [0.0, 1.0, math.nan, 0.5, 7.0, 0.5], [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    rollouts = [
        make_rollout(reward, [mask], [0.0], float(math.isnan(reward)))
        for reward, mask in zip(rewards, masks, strict=True)
    ]
    batches = give_advantages(rollouts, make_arguments("dr_grpo", 3))
    assert list_by_rollout(batches, "group_reward_std") == pytest.approx([math.sqrt(0.5)] * 3 + [0.0] * 3)
    assert list_by_rollout(batches, "return") == [-0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_spread_that_is_rounding_or_of_a_rollout_without_a_reward_is_none():
    values = [0.6, 0.6000001, 0.6, 0.6, 0.6, math.nan, 0.6, 0.6, 0.6, 0.0, 0.6, 0.6, math.nan, math.nan, 1.0, 2.0]
    rollouts = [make_rollout(value, [1.0], [0.0], float(math.isnan(value))) for value in values]
    rollouts[-2:] = [make_rollout(value, [0.0], [0.0]) for value in values[-2:]]  # a group that takes no part
    made = advantages.compute(rollouts, make_arguments("dr_grpo", 4))
    assert made.zero_spread_groups == pytest.approx(2 / 3)
    assert math.isnan(advantages.compute(rollouts[-4:], make_arguments("dr_grpo", 4)).zero_spread_groups)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "changes",
    [
        {"reward_clip_range": (5, 9)},  # makes all rewards equal
        {"overlong_buffer_len": 3.0, "overlong_penalty_factor": 0.7},  # 0.7 - 0.35 is not exact in float32
    ],
    ids=["clip", "penalty"],
)
def test_rewards_that_become_equal_give_finite_advantages(estimator, changes):
    rollouts = [make_rollout(reward, [1.0], [0.0]) for reward in ([0.7] * 6 if len(changes) > 1 else (0.0, 1.0))]
    for rollout in rollouts:
        rollout.info["length_limit"] = torch.tensor([2.5])
    batches = give_advantages(rollouts, make_arguments(estimator, len(rollouts), **changes))
    assert all(batch.advantages.isfinite().all() for batch in batches)
    assert len(changes) == 1 or not any(batch.advantages.any() for batch in batches)
