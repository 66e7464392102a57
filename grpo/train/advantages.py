"""Rewards to advantages, in float64. Replaces OpenRLHF's ``compute_advantages_and_returns``.

In a group of n rollouts with rewards r, their mean m and their standard deviation s (with n - 1), a rollout gets

- ``dr_grpo``: r - m (https://arxiv.org/abs/2503.20783)
- ``rloo``: r - the mean of the others, which is (r - m) n / (n - 1) (https://arxiv.org/abs/2402.14740)
- ``group_norm``: (r - m) / s (https://arxiv.org/abs/2402.03300)
- ``reinforce_baseline``: r - m, standardised over the tokens of the step (https://arxiv.org/abs/2501.03262)
- ``reinforce``: r, standardised over the tokens of the step

A group without spread gets exactly 0. ``reinforce`` knows no groups: its group is the step. Stock OpenRLHF divides what
rounding leaves of r - m by 1e-9, and clips the result to 10.
"""

import math
from collections.abc import Sequence

import torch

from grpo.rollout.rows import Batch
from grpo.stack.upstream.arguments import Arguments
from grpo.train.micro_batches import find_left_out

ROUNDING = 1e-6  # of the largest reward, or of 1: a smaller spread comes from the order of additions in float32


def compute(experiences: Sequence[Batch], args: Arguments, kl_coef: float) -> None:
    """Give every token of each rollout its return and its advantage, in place; the logs ``return`` and
    ``group_reward_std``, too.

    The KL of the reward (``--init_kl_coef`` without ``--use_kl_loss``) is subtracted at each token. It is no
    comparison of rollouts, so a group without spread keeps it.

    Args:
        experiences: the micro-batches of a step: ``rewards`` ``[B]`` with penalties, ``kl`` ``[B, A]``.
        kl_coef: the factor of ``kl``.
    """
    rewards, counts = group_rewards(experiences, args.n_samples_per_prompt)
    values, compared = shape_rewards(rewards, counts, args)
    deviations = _deviation(rewards, counts).expand_as(rewards)
    gamma = args.gamma if args.advantage_estimator == "reinforce" else 1.0
    for experience in experiences:
        value, deviation = (column.flatten()[experience.index] for column in (values, deviations))
        earned = _rewards_of_tokens(experience, value, kl_coef)
        experience.info["return"] = earned.sum(-1).float()
        experience.info["group_reward_std"] = deviation.float()
        experience.advantages = _returns(earned, gamma)
        experience.returns = experience.advantages.float()
        experience.kl = None
    if args.advantage_estimator in ("reinforce", "reinforce_baseline"):
        _standardise(experiences, compared, not args.no_advantage_std_norm)
    for experience in experiences:
        experience.advantages = experience.advantages.float()


def group_rewards(experiences: Sequence[Batch], group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards of all rollouts by group, float64 ``[G, N]``, and which of them count, bool ``[G, N]``.

    Rollouts that :func:`grpo.train.micro_batches.find_left_out` names do not count.
    """
    order = torch.tensor([number for experience in experiences for number in experience.index]).argsort()
    rewards = torch.cat([experience.rewards for experience in experiences]).double()
    counts = ~torch.cat([find_left_out(experience) for experience in experiences])
    return rewards[order].view(-1, group_size), counts[order].view(-1, group_size)


def has_spread(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return in which groups the rewards that count differ by more than rounding, bool ``[G]``."""
    low, high = rewards.where(counts, math.inf).amin(-1), rewards.where(counts, -math.inf).amax(-1)
    return high - low > ROUNDING * rewards.where(counts, 0.0).abs().amax(-1).clamp(min=1.0)


def measure_spread(experiences: Sequence[Batch], args: Arguments) -> dict[str, float]:
    """Return the share of groups without spread among those with a rollout that counts; {} if there are none."""
    rewards, counts = group_rewards(experiences, args.n_samples_per_prompt)
    is_flat = ~has_spread(rewards, counts)[counts.any(-1)]
    return {"zero_spread_groups": float(is_flat.double().mean())} if len(is_flat) else {}


def shape_rewards(rewards: torch.Tensor, counts: torch.Tensor, args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the rewards contribute to the advantages, and which rollouts are compared with others.

    Rollouts that do not count and those of groups without spread contribute 0.

    Args:
        rewards, counts: of :func:`group_rewards`, ``[G, N]``.

    Returns:
        float64 and bool ``[G, N]``.
    """
    low, high = args.reward_clip_range
    if args.advantage_estimator == "reinforce":
        values = rewards.clamp(low, high)
        compared = counts & has_spread(values.view(1, -1), counts.view(1, -1))
        return values.where(compared, 0.0), compared
    number = counts.sum(-1, keepdim=True)
    values = rewards - _mean(rewards, counts)
    if args.advantage_estimator == "rloo":
        values = values * number / (number - 1)
    elif args.advantage_estimator == "group_norm":
        values = values / _deviation(rewards, counts)
    compared = counts & has_spread(rewards, counts)[:, None]
    return values.clamp(low, high).where(compared, 0.0), compared


def _mean(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean of each group, ``[G, 1]``; NaN if nothing in it counts."""
    return rewards.where(counts, 0.0).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)


def _deviation(rewards: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of each group, ``[G, 1]``; 0 if less than two rollouts count."""
    squares = (rewards - _mean(rewards, counts)).where(counts, 0.0).square().sum(-1, keepdim=True)
    return (squares / (counts.sum(-1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _rewards_of_tokens(experience: Batch, values: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """Return what each token earns, float64 ``[B, A]``: the KL of its own, and the last sampled one the reward."""
    assert experience.kl is not None
    mask = experience.action_mask.double()
    last = (mask * torch.arange(1, mask.shape[-1] + 1)).argmax(-1, keepdim=True)
    at_last = torch.zeros_like(mask).scatter_(-1, last, values[:, None])
    return mask * (at_last - max(kl_coef, 0.0) * experience.kl.double())


def _returns(earned: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return what each token and all later ones earn, ``[B, A]``; a token weighs `gamma` less than the one before."""
    returns = torch.zeros_like(earned)
    to_come = torch.zeros_like(earned[:, 0])
    for position in reversed(range(earned.shape[-1])):
        to_come = earned[:, position] + gamma * to_come
        returns[:, position] = to_come
    return returns


def _standardise(experiences: Sequence[Batch], compared: torch.Tensor, divide: bool) -> None:
    """Subtract from the advantages their mean over the tokens of the step, and divide them by their deviation.

    Rollouts that were compared with no other are not shifted: theirs stay 0, or the KL alone.

    Args:
        compared: of :func:`shape_rewards`, ``[G, N]``.
        divide: whether to divide.
    """
    if not compared.any():
        return
    masks = [experience.action_mask.bool() & ~find_left_out(experience)[:, None] for experience in experiences]
    tokens = torch.cat([experience.advantages[mask] for experience, mask in zip(experiences, masks, strict=True)])
    # A deviation of 0 remains where --reward_clip_range has made all tokens equal.
    mean, scale = tokens.mean(), tokens.std(correction=0).clamp(min=1e-12) if divide else 1.0
    for experience in experiences:
        is_compared = compared.flatten()[experience.index][:, None]
        experience.advantages = (experience.advantages - mean * is_compared) / scale


def soft_penalty(lengths: torch.Tensor, limits: torch.Tensor, buffer: float, factor: float) -> torch.Tensor:
    """Return the penalty on each reward, ``[B]``: 0 up to ``buffer`` tokens before the limit, ``factor`` at it.

    Linear in between: DAPO (https://arxiv.org/abs/2503.14476) with a factor of 1 for rewards of -1 and 1, Magistral
    (https://arxiv.org/abs/2506.10910) with 0.1.

    Args:
        lengths, limits: ``[B]``, tokens.
        buffer: tokens, more than 0.
    """
    return factor * ((lengths - (limits - buffer)) / buffer).clamp(0, 1)


def penalise(experiences: Sequence[Batch], args: Arguments) -> None:
    """Subtract the overlong penalty from the rewards, and scale those of truncated responses (ProRL).

    Stock OpenRLHF measures from the first to the last sampled token, including the environment's tokens in between, and
    takes the limit from the flags. Here only sampled tokens count, against the limit under which a rollout was drawn.
    Those of a conversation are its tokens in all turns (``info["rollout_tokens"]``), also of branches.
    ``info["length_penalty"]`` is the penalty; ``info["reward"]`` does not change.

    Args:
        experiences: the micro-batches of a step: ``rewards`` and ``info["length_limit"]`` ``[B]``, ``action_mask``
            ``[B, A]``.
    """
    for experience in experiences:
        if args.stop_properly_penalty_coef is not None:
            is_cut = experience.info["truncated"].bool()
            scaled = experience.rewards * args.stop_properly_penalty_coef
            experience.rewards = experience.rewards.where(~is_cut, scaled)
        if args.overlong_buffer_len is not None:
            lengths = experience.info.get("rollout_tokens", experience.action_mask.bool().sum(-1))
            limits = experience.info["length_limit"].to(lengths.device)
            penalty = soft_penalty(lengths, limits, args.overlong_buffer_len, args.overlong_penalty_factor)
            experience.rewards = experience.rewards - penalty
            experience.info["length_penalty"] = penalty


def mark_masked(batches: Sequence[Batch], args: Arguments) -> None:
    """Give each rollout ``info["masked_rollouts"]``, 1 or 0; does nothing without MASK_TRUNCATED.

    This comes after the advantages, so that a group's mean is that of all its rollouts. A rollout that takes no part in
    the update anyway is not marked.

    Args:
        batches: the micro-batches of a step: ``info["truncated"]``, ``[B]``.
    """
    for batch in batches if args.mask_truncated else ():
        batch.info["masked_rollouts"] = ((batch.info["truncated"] > 0) & ~find_left_out(batch)).float()
