"""Penalties for responses that are close to their length limit, or were cut at it."""

from collections.abc import Sequence

import torch

from grpo.rollout.rows import Batch
from grpo.stack.upstream.arguments import Arguments


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
