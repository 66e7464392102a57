from types import SimpleNamespace

import torch

from grpo.hooks.flag_aliases import Arguments
from grpo.train import advantages


def make_rollouts(lengths: list[int], limit: float, gap: int = 0) -> list[SimpleNamespace]:
    """Rollouts with so many sampled tokens, the first one before an environment's answer of `gap` tokens."""
    rollouts = []
    for length in lengths:
        mask = torch.zeros(1, max(lengths) + gap + 1)
        mask[0, 0] = length > 0
        mask[0, 1 + gap : gap + length] = 1
        numbers = {"length_limit": limit, "truncated": 0.0, "reward_missing": 0.0}
        info = {name: torch.tensor([value]) for name, value in numbers.items()}
        rollouts.append(SimpleNamespace(rewards=torch.ones(1), action_mask=mask, info=info))
    return rollouts


def make_arguments(**changes) -> Arguments:
    values = {"generate_max_len": 100, "overlong_buffer_len": 20.0, "overlong_penalty_factor": 0.5}
    return Arguments(**values | {"stop_properly_penalty_coef": None} | changes)


def test_penalty_has_the_shape_of_dapo():
    rollouts = make_rollouts([1, 80, 85, 90, 100, 130], 100.0)
    for factor in (1.0, 0.1):
        _, logs = advantages.penalize_rewards(rollouts, make_arguments(overlong_penalty_factor=factor))
        torch.testing.assert_close(logs["length_penalty"], factor * torch.tensor([0.0, 0.0, 0.25, 0.5, 1.0, 1.0]))


def test_it_equals_openrlhfs_if_every_token_was_sampled():
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

    lengths = [1, 79, 80, 81, 95, 100]
    of_stock = {"response_length": torch.tensor(lengths).float(), "truncated": torch.zeros(6).bool()}
    stock = SimpleNamespace(rewards=torch.ones(6), action_mask=torch.ones(6, 100), info=of_stock, **of_stock)
    apply_length_penalties([stock], make_arguments())
    rewards, logs = advantages.penalize_rewards(make_rollouts(lengths, 100.0), make_arguments())
    torch.testing.assert_close(rewards, stock.rewards)
    torch.testing.assert_close(logs["length_penalty"], 1 - stock.rewards)


def penalize(rollouts, **changes) -> list[float]:
    return advantages.penalize_rewards(rollouts, make_arguments(**changes))[0].tolist()


def test_tokens_of_the_environment_are_not_penalized():
    assert penalize(make_rollouts([50], 100.0, gap=45)) == [1.0]


def test_a_conversation_is_measured_by_the_tokens_of_all_its_turns():
    """80 of the 90 tokens are in branches."""
    [one] = make_rollouts([10], 100.0)
    one.info["rollout_tokens"] = torch.tensor([90.0])
    assert penalize([one]) == [0.75]


def test_each_rollout_is_measured_by_its_own_limit():
    """Of a growing schedule, one was carried over."""
    assert penalize([*make_rollouts([50], 50.0), *make_rollouts([50], 100.0)]) == [0.5, 1.0]


def test_openrlhfs_penalty_of_cut_rollouts_is_kept():
    rollouts = make_rollouts([100, 100], 100.0)
    rollouts[0].info["truncated"][0] = 1
    assert penalize(rollouts, stop_properly_penalty_coef=0.5) == [0.0, 0.5]
