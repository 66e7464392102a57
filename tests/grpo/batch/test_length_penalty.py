from types import SimpleNamespace

import pytest
import torch

from grpo.batch import advantages, length_penalty
from grpo.hooks.flag_aliases import Arguments

from .made_experiences import make_experiences


def make_experience(lengths: list[int], limit: float, gap: int = 0) -> SimpleNamespace:
    """Samples with so many sampled tokens, the first one before an environment's answer of `gap` tokens."""
    mask = torch.zeros(len(lengths), max(lengths) + gap + 1)
    for row, length in zip(mask, lengths, strict=True):
        row[0] = length > 0
        row[1 + gap : gap + length] = 1
    first_to_last = torch.tensor([float(length + gap) for length in lengths])
    info = {
        "response_length": first_to_last, "length_limit": torch.full((len(lengths),), limit),
        "reward": torch.ones(len(lengths)), "truncated": torch.tensor([False] * len(lengths)),
    }  # fmt: skip
    fields = {"response_length": first_to_last, "truncated": info["truncated"]}  # where later OpenRLHF reads them
    return SimpleNamespace(rewards=torch.ones(len(lengths)), action_mask=mask, info=info, **fields)


def make_arguments(**changes) -> Arguments:
    values = {"generate_max_len": 100, "overlong_buffer_len": 20.0, "overlong_penalty_factor": 0.5}
    return Arguments(**values | {"stop_properly_penalty_coef": None} | changes)


def test_penalty_has_the_shape_of_dapo():
    lengths, limits = torch.tensor([1, 80, 85, 90, 100, 130]), torch.full((6,), 100)
    penalty = length_penalty.soft_penalty(lengths, limits, 20, 1.0)
    torch.testing.assert_close(penalty, torch.tensor([0.0, 0.0, 0.25, 0.5, 1.0, 1.0]))
    assert torch.equal(length_penalty.soft_penalty(lengths, limits, 20, 0.1), penalty * 0.1)


def test_it_equals_openrlhfs_if_every_token_was_sampled():
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

    lengths = [1, 79, 80, 81, 95, 100]
    ours, stock = make_experience(lengths, 100.0), make_experience(lengths, 100.0)
    length_penalty.penalise([ours], make_arguments())
    apply_length_penalties([stock], make_arguments())
    torch.testing.assert_close(ours.rewards, stock.rewards)
    torch.testing.assert_close(ours.info["length_penalty"], 1 - stock.rewards)
    assert torch.equal(ours.info["reward"], torch.ones(6))


def test_tokens_of_the_environment_are_not_penalised():
    one = make_experience([50], 100.0, gap=45)
    length_penalty.penalise([one], make_arguments())
    assert one.rewards.item() == 1.0


def test_a_conversation_is_measured_by_the_tokens_of_all_its_turns():
    """80 of the 90 tokens are in branches."""
    one = make_experience([10], 100.0)
    one.info["rollout_tokens"] = torch.tensor([90.0])
    length_penalty.penalise([one], make_arguments())
    assert one.rewards.item() == 0.75


def test_each_sample_is_measured_by_its_own_limit():
    short, long = make_experience([50], 50.0), make_experience([50], 100.0)  # of a growing schedule, carried over
    length_penalty.penalise([short, long], make_arguments())
    assert (short.rewards.item(), long.rewards.item()) == (0.5, 1.0)


def test_without_flags_nothing_is_penalised():
    one = make_experience([100], 100.0)
    length_penalty.penalise([one], make_arguments(overlong_buffer_len=None))
    assert one.rewards.item() == 1.0 and "length_penalty" not in one.info


def test_openrlhfs_penalty_of_cut_samples_is_kept():
    one = make_experience([100, 100], 100.0)
    one.info["truncated"][0] = True
    one.index, one.kl = [0, 1], torch.zeros(one.action_mask.shape)
    args = make_arguments(
        stop_properly_penalty_coef=0.5, n_samples_per_prompt=2, advantage_estimator="dr_grpo", gamma=1.0,
        reward_clip_range=(-10, 10),
    )  # fmt: skip
    length_penalty.penalise([one], args)
    advantages.compute([one], args, 0.0)
    assert one.rewards.tolist() == [0.0, 0.5]
    assert one.advantages.where(one.action_mask > 0, 0.0).amin(-1).tolist() == [-0.25, 0.0]


@pytest.mark.parametrize("limit", [20, 50])
def test_a_sample_carries_its_limit_to_its_advantage(monkeypatch, limit):
    responses = [
        {
            "prompt": "p", "label": "l", "reward": 1.0, "scores": 1.0, "rollout_log_probs": [-1.0] * (3 + length),
            "observation_tokens": list(range(1, 4 + length)), "action_ranges": [(3, 3 + length)],
        }
        for length in (15, 20)
    ]  # fmt: skip
    penalties = {"overlong_buffer_len": 10.0, "overlong_penalty_factor": 0.5, "prompt_max_len": 10}
    _, [batch] = make_experiences(responses, monkeypatch, limit=limit, **penalties, n_samples_per_prompt=2)
    means = [float(row[mask.bool()].mean()) for row, mask in zip(batch.advantages, batch.action_mask, strict=True)]
    expected = 0.125 if limit == 20 else 0.0  # penalties of 0.25 and 0.5, or none
    assert means == pytest.approx([expected, -expected]) and batch.info["reward"].tolist() == [1.0, 1.0]
