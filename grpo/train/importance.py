"""Importance weights that correct for the difference between the engine's and the trainer's log-probs.

The engine samples with its own numerics (kernels, precisions). The trainer's update is therefore slightly off-policy,
however fresh the weights. A token is weighted by exp(trainer - engine), bounded in one of three ways:

- ``tis``: truncated from above only, since weights below 1 are harmless. Stock OpenRLHF raises lower weights to the
  lower threshold, and so trains on tokens that the trainer hardly ever samples. https://fengyao.notion.site/off-policy-rl
- ``icepop``: kept between the thresholds, else 0 (IcePop, Ling team, 2025). Stock's 0 * inf is NaN.
- ``mis``: truncated as in ``tis``, and 0 for rollouts whose geometric mean is outside the thresholds (masked
  importance sampling). Stock leaves the weights of the other rollouts unbounded.

A limit of the divergence sets further tokens to 0. The bounds of a ratio are hardest on rare tokens, whose ratio is
mostly noise; a divergence is hardest on those that either policy finds likely (https://arxiv.org/abs/2602.04879).

A rollout is a response, or a multi-turn conversation with all its rows (:mod:`grpo.train.micro_batches`). It was
sampled and rewarded as one, and is kept or dropped as one.
"""

import torch


def sum_by_rollout(values: torch.Tensor, rollouts: torch.Tensor) -> torch.Tensor:
    """Return for each row the sum over all rows of its rollout, ``[B]``.

    Args:
        values: ``[B]``, one per row.
        rollouts: long ``[B]``, the rollout of each row, numbered from 0 to B - 1 at most.
    """
    rollouts = rollouts.to(values.device)
    return torch.zeros_like(values).index_add(0, rollouts, values)[rollouts]


def average_by_rollout(values: torch.Tensor, mask: torch.Tensor, rollouts: torch.Tensor) -> torch.Tensor:
    """Return for each row the mean of its rollout over the tokens in ``mask``, ``[B, 1]``; 0 without such tokens.

    Args:
        values, mask: ``[B, A]``.
        rollouts: see :func:`sum_by_rollout`.
    """
    sums = sum_by_rollout(torch.where(mask, values, 0.0).sum(-1), rollouts)
    return (sums / sum_by_rollout(mask.sum(-1), rollouts).clamp(min=1))[:, None]


def compute_binary_kl(engine: torch.Tensor, trainer: torch.Tensor) -> torch.Tensor:
    """Return the KL of the trainer from the engine over two outcomes, the sampled token or another, ``[B, A]`` in nat.

    Args:
        engine, trainer: log-probs of the sampled tokens, ``[B, A]``.
    """
    p, q = (log_probs.exp().clamp(1e-6, 1 - 1e-6) for log_probs in (engine, trainer))  # as OpenRLHF 0.11.2
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def compute_weights(
    log_ratio: torch.Tensor,
    mask: torch.Tensor,
    rollouts: torch.Tensor,
    kind: str,
    thresholds: tuple[float, float],
    near: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the weight of each token, ``[B, A]`` without a gradient, and values of that shape to average as metrics.

    - ``importance_cut``: 1 if the weight was truncated or set to 0, else 0.
    - ``importance_weight``: the weight.

    Args:
        log_ratio: ``[B, A]``, trainer minus engine.
        mask: bool ``[B, A]``, the sampled tokens.
        rollouts: see :func:`sum_by_rollout`.
        kind: "tis", "icepop" or "mis".
        thresholds: the lowest and the highest weight; ``tis`` ignores the lowest.
        near: bool ``[B, A]``, False for tokens whose divergence is beyond its limit; None without a limit.
    """
    low, high = thresholds
    with torch.no_grad():
        ratio = log_ratio.exp()  # inf is fine: it is truncated, or selected away below and never multiplied by 0
        weight = ratio.clamp(max=high)
        kept = torch.ones_like(mask) if near is None else near
        if kind == "icepop":
            kept = kept & (ratio >= low) & (ratio <= high)
        elif kind == "mis":
            mean = average_by_rollout(log_ratio, mask, rollouts).exp()
            kept = kept & (mean >= low) & (mean <= high)  # of all its rows, or of none
        weight = torch.where(kept, weight, 0.0)
        # Not equal rather than above: a weight that was set to 0 is cut, too.
        return weight, {"importance_cut": (weight != ratio).float(), "importance_weight": weight}
