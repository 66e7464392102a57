"""Metrics of one rollout batch, computed exactly from its samples: over tokens or samples, as each quantity demands.

Names, units and healthy ranges stand in :mod:`grpo.metric_schema`. What cannot be said of a batch (a correlation
without spread, a quality without judged samples) is left out, not made up.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

NGRAM = 3


def experience_metrics(experiences: Sequence[Any], group_size: int) -> dict[str, float]:
    """Return the metrics of one rollout batch.

    Args:
        experiences: OpenRLHF's, after ``compute_advantages_and_returns``: ``sequences`` ``[B, S]``, ``advantages`` and
            ``action_mask`` ``[B, S - 1]``, ``rewards`` ``[B]``, ``index`` (place of each sample in the rollout),
            ``info`` with ``[B]`` by name.
        group_size: samples a prompt.
    """
    # Experiences are padded to lengths of their own: what goes by tokens is summed up for each sample first.
    masks = [experience.action_mask.bool() for experience in experiences]
    lengths = torch.cat([mask.sum(-1) for mask in masks]).double()
    sums = torch.cat([(e.advantages.double() * mask).sum(-1) for e, mask in zip(experiences, masks, strict=True)])
    advantages = sums / lengths.clamp(min=1)
    rewards = torch.cat([experience.rewards for experience in experiences]).double()
    order = torch.tensor([index for experience in experiences for index in experience.index])
    groups = rewards[order.argsort()].view(-1, group_size)
    found = {
        "advantage_mean": advantages.mean(),
        "advantage_std": advantages.std(correction=0),
        "advantage_min": advantages.min(),
        "advantage_max": advantages.max(),
        "zero_spread_groups": (groups.amax(-1) == groups.amin(-1)).double().mean(),
        "reward_std": rewards.std(correction=0),
        "token_advantage_mean": sums.sum() / lengths.sum().clamp(min=1),
        "advantage_length_correlation": correlation(advantages, lengths),
        "response_length_p50": lengths.quantile(0.5),
        "response_length_p90": lengths.quantile(0.9),
        "response_length_max": lengths.max(),
        "repetition": _mean_repetition(experiences, masks),
        **_honesty(experiences, rewards),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _honesty(experiences: Sequence[Any], rewards: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Whether the reward follows correctness, and what the judge thinks of right and of wrong samples."""
    correct = _of_info(experiences, "correct")
    if correct is None:
        return {}
    right = correct > 0.5
    found = {"reward_correct_correlation": correlation(rewards, correct)}
    if right.any():
        high = rewards >= rewards[right].quantile(0.5)
        found["high_reward_wrong"] = (high & ~right).double().sum() / high.double().sum()
    quality, calls, cached = (_of_info(experiences, f"judge_{name}") for name in ("quality", "calls", "cached"))
    failed = _of_info(experiences, "judge_failed")
    if quality is not None and calls is not None and cached is not None and failed is not None:
        is_judged = (calls + cached > 0) & (failed < 0.5)
        for name, part in (("right", right & is_judged), ("wrong", ~right & is_judged)):
            found[f"judge_quality_{name}"] = quality[part].mean() if part.any() else None
    return found


def _of_info(experiences: Sequence[Any], name: str) -> torch.Tensor | None:
    if not all(name in experience.info for experience in experiences):
        return None
    return torch.cat([torch.as_tensor(experience.info[name]).reshape(-1) for experience in experiences]).double()


def correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return Pearson's correlation of two ``[N]``; None where one of them has no spread."""
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return (a * b).sum() / scale if scale > 1e-12 else None


def _mean_repetition(experiences: Sequence[Any], masks: Sequence[torch.Tensor]) -> torch.Tensor:
    shares = [
        repetition(row[1:][: len(mask)][mask].tolist())
        for experience, batch in zip(experiences, masks, strict=True)
        for row, mask in zip(experience.sequences, batch, strict=True)
    ]
    return torch.tensor(shares, dtype=torch.float64).mean()


def repetition(tokens: Sequence[int], size: int = NGRAM) -> float:
    """Return the share of n-grams of a response that were there before in it; 0 where it is too short for two."""
    grams = Counter(zip(*(tokens[start:] for start in range(size)), strict=False))
    total = grams.total()
    return 1 - len(grams) / total if total else 0.0
