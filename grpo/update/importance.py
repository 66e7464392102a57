"""Weights that correct for the engine: its log-probs of a token are not quite the trainer's.

The engine samples from its own numerics (kernels, precisions), so an update with the trainer's is slightly off-policy,
however fresh the weights. A token is weighted by exp(trainer - engine), kept in bounds by one of:

- ``tis``: truncated from above alone. A weight below 1 is no danger; stock raises those below the lower threshold up to
  it, and so trains on tokens that the trainer hardly ever samples. https://fengyao.notion.site/off-policy-rl
- ``icepop``: kept where it is between the thresholds, else 0 (IcePop, Ling team, 2025). Stock's 0 * inf is NaN.
- ``mis``: truncated as in ``tis``, and 0 for rollouts whose geometric mean is not between the thresholds (masked
  importance sampling); stock leaves the weights of the others without a bound.

A rollout is a response, or a conversation of several turns with all of its rows (:mod:`grpo.batch.branches`): it
was sampled and rewarded as one, and is kept or dropped as one.
"""

import torch


def rollout_sums(values: torch.Tensor, rollouts: torch.Tensor) -> torch.Tensor:
    """Return for each row the sum over all rows of its rollout, ``[B]``.

    Args:
        values: ``[B]``, one a row.
        rollouts: long ``[B]``, the rollout of each row, numbered from 0 to B - 1 at most.
    """
    rollouts = rollouts.to(values.device)
    return torch.zeros_like(values).index_add(0, rollouts, values)[rollouts]


def rollout_mean(values: torch.Tensor, mask: torch.Tensor, rollouts: torch.Tensor) -> torch.Tensor:
    """Return for each row the mean of its rollout, ``[B, 1]``, over the tokens where ``mask``; 0 where there are none.

    Args:
        values, mask: ``[B, A]``.
        rollouts: see :func:`rollout_sums`.
    """
    sums = rollout_sums(torch.where(mask, values, 0.0).sum(-1), rollouts)
    return (sums / rollout_sums(mask.sum(-1), rollouts).clamp(min=1))[:, None]


def weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, rollouts: torch.Tensor, kind: str, thresholds: tuple[float, float]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the weight of each token, ``[B, A]`` without a gradient, and what its metrics are means of, as large.

    - ``importance_cut``: 1 where the weight was truncated or set to 0, else 0.
    - ``importance_weight``: the weight.

    Args:
        log_ratio: ``[B, A]``, trainer minus engine.
        mask: bool ``[B, A]``, the sampled tokens.
        rollouts: see :func:`rollout_sums`.
        kind: "tis", "icepop" or "mis".
        thresholds: the lowest and the highest weight; ``tis`` does not use the lowest.
    """
    low, high = thresholds
    with torch.no_grad():
        ratio = log_ratio.exp()
        found = ratio.clamp(max=high)
        kept = torch.ones_like(mask)
        if kind == "icepop":
            kept = (ratio >= low) & (ratio <= high)
        elif kind == "mis":
            mean = rollout_mean(log_ratio, mask, rollouts).exp()
            kept = ((mean >= low) & (mean <= high)).expand_as(mask)
        found = torch.where(kept, found, 0.0)
        return found, {"importance_cut": (found != ratio).float(), "importance_weight": found}
