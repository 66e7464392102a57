"""Rewards to advantages, in float64. Replaces OpenRLHF's ``compute_advantages_and_returns``.

In a group of n rollouts with rewards r, their mean m and their standard deviation s (with n - 1), a rollout gets

- ``dr_grpo``: r - m (https://arxiv.org/abs/2503.20783)
- ``rloo``: r - the mean of the others, which is (r - m) n / (n - 1) (https://arxiv.org/abs/2402.14740)
- ``group_norm``: (r - m) / s (https://arxiv.org/abs/2402.03300)
- ``reinforce_baseline``: r - m, standardized over the tokens of the step (https://arxiv.org/abs/2501.03262)
- ``reinforce``: r, standardized over the tokens of the step

A group without spread gets exactly 0. ``reinforce`` knows no groups: its group is the step. Stock OpenRLHF divides what
rounding leaves of r - m by 1e-9, and clips the result to 10.

Axes: G groups of N rollouts; B rows of a micro-batch, A positions of a row that predict a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.rollout.rows import Batch, Sample, get_branches
from grpo.stack.upstream import Arguments

ROUNDING = 1e-6  # of the largest reward, or of 1: a smaller spread comes from the order of additions in float32


@dataclass(frozen=True)
class Advantages:
    """The advantages of the groups of a step, before the tokens get them.

    Attributes:
        values: float64 ``[G, N]``; 0 for a rollout that is compared with no other.
        counts: which rollouts take part in the update, bool ``[G, N]``: those with a reward and a sampled token.
        compared: which are compared with others, bool ``[G, N]``.
        logs: of the rollouts by name, float32 ``[G * N]``.
        zero_spread_groups: the share of groups without spread among those with a rollout that counts; NaN without any.
    """

    values: torch.Tensor
    counts: torch.Tensor
    compared: torch.Tensor
    logs: dict[str, torch.Tensor]
    zero_spread_groups: float


def compute(rollouts: Sequence[Sample], args: Arguments) -> Advantages:
    """Return the advantages of the rollouts of a step, which lie in the order of their groups."""
    penalized, logs = penalize_rewards(rollouts, args)
    rewards = penalized.double().view(-1, args.n_samples_per_prompt)
    counts = torch.tensor([_takes_part(rollout) for rollout in rollouts]).view_as(rewards)
    values, compared = shape_rewards(rewards, counts, args)
    logs["group_reward_std"] = _compute_deviation(rewards, counts).expand_as(rewards).flatten().float()
    if args.mask_truncated:  # after the advantages: a group's mean is that of all its rollouts
        logs["masked_rollouts"] = ((_read_log(rollouts, "truncated") > 0) & counts.flatten()).float()
    zero_spread = ~has_spread(rewards, counts)[counts.any(-1)]
    return Advantages(values, counts, compared, logs, float(zero_spread.double().mean()))


def assign_to_tokens(batches: Sequence[Batch], advantages_GN: Advantages, args: Arguments) -> None:
    """Give each sampled token of rollouts and branches its advantage, in place, and the rollouts their logs.

    The KL of the reward (``--init_kl_coef`` without ``--use_kl_loss``) is subtracted at each token. It is no
    comparison of rollouts, so a group without spread keeps it. With an environment, the launcher refuses it, and the
    estimators that do not compare a group.
    """
    gamma = args.gamma if args.advantage_estimator == "reinforce" else 1.0  # --gamma is refused for others
    values, counts = advantages_GN.values.flatten(), advantages_GN.counts.flatten()
    compared = advantages_GN.compared.flatten()
    tokens: list[torch.Tensor] = []  # float64 [B, A] for each micro-batch
    for batch in batches:
        earned = _compute_rewards_of_tokens(batch, values[batch.index], args.init_kl_coef)
        rollouts = batch.index[: len(batch.prompts)]
        batch.info["return"] = earned[: len(rollouts)].sum(-1).float()
        batch.info |= {name: log[rollouts] for name, log in advantages_GN.logs.items()}
        # A rollout that takes no part loses its mask too. With an advantage of 0 alone, its tokens would still count
        # in the KL, the entropy, the loss's number of tokens, and the metrics.
        batch.action_mask = batch.action_mask * counts[batch.index][:, None]
        tokens.append(_compute_returns(earned, gamma) * batch.action_mask)
        batch.kl = None
    if args.advantage_estimator in ("reinforce", "reinforce_baseline") and compared.any():
        sampled = torch.cat([one[batch.action_mask.bool()] for batch, one in zip(batches, tokens, strict=True)])
        mean, scale = sampled.mean(), 1.0
        if not args.no_advantage_std_norm:  # 0 remains where --reward_clip_range has made all tokens equal
            scale = float(sampled.std(correction=0).clamp(min=1e-12))
        # Rollouts that were compared with no other are not shifted: theirs stay 0, or the KL alone.
        tokens = [
            (one - mean * compared[batch.index][:, None]) / scale * batch.action_mask
            for batch, one in zip(batches, tokens, strict=True)
        ]
    for batch, one in zip(batches, tokens, strict=True):
        batch.advantages = one.float()


def _takes_part(rollout: Sample) -> bool:
    is_sampled = bool(rollout.action_mask.any())
    # Branches come from turns, and the last turn ends in the last row.
    assert is_sampled or not get_branches(rollout), "a rollout with branches has no sampled token in its last row"
    return is_sampled and not rollout.info["reward_missing"] > 0


def _read_log(rollouts: Sequence[Sample], name: str) -> torch.Tensor:
    """Return a log of all rollouts, ``[G * N]``."""
    return torch.cat([rollout.info[name] for rollout in rollouts])


def has_spread(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return in which groups the rewards that count differ by more than rounding, bool ``[G]``."""
    low, high = rewards.where(counts, math.inf).amin(-1), rewards.where(counts, -math.inf).amax(-1)
    return high - low > ROUNDING * rewards.where(counts, 0.0).abs().amax(-1).clamp(min=1.0)


def shape_rewards(rewards: torch.Tensor, counts: torch.Tensor, args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the rewards contribute to the advantages, and which rollouts are compared with others.

    Rollouts that do not count and those of groups without spread contribute 0.

    Args:
        rewards, counts: ``[G, N]``; rollouts that take no part in the update do not count.

    Returns:
        float64 and bool ``[G, N]``.
    """
    low, high = args.reward_clip_range
    if args.advantage_estimator == "reinforce":
        values = rewards.clamp(low, high)
        compared = counts & has_spread(values.view(1, -1), counts.view(1, -1))  # the step is its one group
        return values.where(compared, 0.0), compared
    number = counts.sum(-1, keepdim=True)
    values = rewards - _compute_mean(rewards, counts)
    if args.advantage_estimator == "rloo":
        values = values * number / (number - 1)
    elif args.advantage_estimator == "group_norm":
        values = values / _compute_deviation(rewards, counts)
    # Selected, not multiplied: a group without spread has divided by 0 above.
    compared = counts & has_spread(rewards, counts)[:, None]
    return values.clamp(low, high).where(compared, 0.0), compared


def _compute_mean(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean of each group, ``[G, 1]``; NaN if nothing in it counts."""
    return rewards.where(counts, 0.0).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)


def _compute_deviation(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of each group, ``[G, 1]``; 0 if less than two rollouts count."""
    squares = (rewards - _compute_mean(rewards, counts)).where(counts, 0.0).square().sum(-1, keepdim=True)
    return (squares / (counts.sum(-1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _compute_rewards_of_tokens(batch: Batch, values: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """Return what each token earns, float64 ``[B, A]``: the KL of its own, and the last sampled one the advantage."""
    assert batch.kl is not None
    mask = batch.action_mask.double()
    last = (mask * torch.arange(1, mask.shape[-1] + 1)).argmax(-1, keepdim=True)  # from 1, since 0 marks no token
    at_last = torch.zeros_like(mask).scatter_(-1, last, values[:, None])
    return mask * (at_last - max(kl_coef, 0.0) * batch.kl.double())  # as OpenRLHF, which ignores negative ones


def _compute_returns(earned: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return what each token and all later ones earn, ``[B, A]``; a token weighs `gamma` less than the one before."""
    returns = torch.zeros_like(earned)
    to_come = torch.zeros_like(earned[:, 0])
    for position in reversed(range(earned.shape[-1])):
        to_come = earned[:, position] + gamma * to_come
        returns[:, position] = to_come
    return returns


def penalize_rewards(rollouts: Sequence[Sample], args: Arguments) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the rewards after penalties, float32 ``[G * N]``, and the overlong penalty as a log.

    Rewards of truncated responses are scaled (ProRL). The overlong penalty is subtracted from all: 0 up to
    ``--overlong_buffer_len`` tokens before the limit, ``--overlong_penalty_factor`` at it, and linear in between. DAPO
    (https://arxiv.org/abs/2503.14476) has a factor of 1 for rewards of -1 and 1, Magistral
    (https://arxiv.org/abs/2506.10910) 0.1.

    Stock OpenRLHF counts from the first to the last sampled token, including the environment's tokens in between, and
    takes the limit from the flags. Here only sampled tokens count, against the limit under which a rollout was drawn.
    Those of a conversation are its tokens in all turns (``info["rollout_tokens"]``), also of branches.
    """
    rewards = torch.cat([rollout.rewards for rollout in rollouts])
    if args.stop_properly_penalty_coef is not None:
        rewards = torch.where(_read_log(rollouts, "truncated") > 0, rewards * args.stop_properly_penalty_coef, rewards)
    if args.overlong_buffer_len is None:
        return rewards, {}
    sampled = [rollout.info.get("rollout_tokens", rollout.action_mask.bool().sum(-1)) for rollout in rollouts]
    excess = torch.cat(sampled) - (_read_log(rollouts, "length_limit") - args.overlong_buffer_len)
    penalty = args.overlong_penalty_factor * (excess / args.overlong_buffer_len).clamp(0, 1)
    return rewards - penalty, {"length_penalty": penalty}
