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


def make_batches(step: list[list[float]], dtype: torch.dtype, seed: int) -> list[SimpleNamespace]:
    """Micro-batches in any order and size, with rollouts that have no reward or no tokens."""
    draw = random.Random(seed)
    rewards = [reward for group in step for reward in group]
    order = draw.sample(range(len(rewards)), len(rewards))
    batches = []
    while order:
        count = draw.randint(1, 9)
        rows, order = order[:count], order[count:]
        mask = torch.tensor([[float(draw.random() < 0.5) for _ in range(WIDTH)] for _ in rows])
        flags = {"reward_missing": torch.tensor([float(draw.random() < 0.2) for _ in rows])}
        mask[torch.tensor([draw.random() < 0.1 for _ in rows])] = 0.0
        given_rewards = torch.tensor([rewards[row] for row in rows], dtype=dtype)
        given_rewards[flags["reward_missing"] > 0] = math.nan
        kl = torch.tensor([[draw.gauss(0, 0.1) for _ in range(WIDTH)] for _ in rows])
        batches.append(SimpleNamespace(index=rows, rewards=given_rewards, action_mask=mask, kl=kl, info=flags))
    return batches


def make_arguments(estimator: str, size: int, **changes) -> SimpleNamespace:
    values = {"gamma": 1.0, "reward_clip_range": (-10, 10), "no_advantage_std_norm": False}
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


def compute_advantages(batches: list[SimpleNamespace], args: SimpleNamespace, beta: float) -> dict[int, list[float]]:
    """The advantage of each sampled token of each rollout that is trained on."""
    low, high = args.reward_clip_range
    rollouts = {}
    for batch in batches:
        for row, number in enumerate(batch.index):
            mask = batch.action_mask[row] > 0
            if mask.any() and not batch.info["reward_missing"][row]:
                at = mask.nonzero().flatten().tolist()
                rollouts[number] = (batch.rewards[row].item(), at, batch.kl[row][mask].tolist())
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


def find_largest_difference(step, dtype, seed, args, beta) -> float:
    """The largest difference from the formula, as a share of the step's largest advantage or of 1."""
    batches = make_batches(step, dtype, seed)
    expected = compute_advantages(batches, args, beta)
    advantages.compute(batches, args, beta)
    worst, largest = 0.0, max([1.0, *(abs(token) for values in expected.values() for token in values)])
    for batch in batches:
        assert batch.advantages.dtype == batch.returns.dtype == torch.float32
        assert batch.advantages.isfinite().all() and batch.kl is None
        for row, number in enumerate(batch.index):
            if number not in expected:
                continue
            got = batch.advantages[row][batch.action_mask[row] > 0].tolist()
            if not beta and not any(expected[number]):
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
    args = make_arguments(estimator, len(step[0]), **changes)
    assert find_largest_difference(step, dtype, seed, args, beta) < 2e-7


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_kl_of_the_reward_stays_without_spread(estimator):
    """It is no comparison of rollouts. The sum over what a token and the later ones cost, times the factor."""
    batch = SimpleNamespace(
        index=[0, 1], rewards=torch.tensor([0.6, 0.6]), kl=torch.tensor([[9.0, 0.1, 0.2], [9.0, 0.3, 9.0]]),
        action_mask=torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]), info={},
    )  # fmt: skip
    advantages.compute([batch], make_arguments(estimator, 2), 0.5)
    got = batch.advantages[batch.action_mask > 0]
    torch.testing.assert_close(got, torch.tensor([-0.15, -0.1, -0.15]))
    torch.testing.assert_close(batch.info["return"], torch.tensor([-0.15, -0.15]))


def test_logs_are_those_of_the_rollouts_that_count():
    batch = SimpleNamespace(
        index=[0, 1, 2, 3, 4, 5], rewards=torch.tensor([0.0, 1.0, math.nan, 0.5, 7.0, 0.5]), kl=torch.zeros(6, 1),
        action_mask=torch.tensor([[1.0], [1.0], [1.0], [1.0], [0.0], [1.0]]),
        info={"reward_missing": torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])},
    )  # fmt: skip
    advantages.compute([batch], make_arguments("dr_grpo", 3), 0.0)
    assert batch.info["group_reward_std"].tolist() == pytest.approx([math.sqrt(0.5)] * 3 + [0.0] * 3)
    assert batch.info["return"].tolist() == [-0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_range_that_makes_all_rewards_equal_gives_finite_advantages(estimator):
    batch = SimpleNamespace(
        index=[0, 1], rewards=torch.tensor([0.0, 1.0]), kl=torch.zeros(2, 1), action_mask=torch.ones(2, 1), info={}
    )
    advantages.compute([batch], make_arguments(estimator, 2, reward_clip_range=(5, 9)), 0.0)
    assert batch.advantages.isfinite().all()
