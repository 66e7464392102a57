"""The loss of a token, from the ratio of policies, the advantage and the log-prob: one function for each POLICY_LOSS.

Let r be the ratio of the trained policy to the one that sampled, p the trained policy's log-prob, and A the advantage.

- ``ppo``: -min(r A, clip(r, 1 - low, 1 + high) A). A token has no gradient once r is beyond the bound to which A moves
  it (https://arxiv.org/abs/1707.06347).
- ``gspo``: the same, where r belongs to the whole rollout: the exponential of its mean log ratio
  (https://arxiv.org/abs/2507.18071).
- ``cispo``: -min(r, CISPO_MAX_RATIO) A p, with the minimum as a constant. Every token keeps a gradient, and the bound
  limits its weight. There is no lower bound, as in MiniMax-M1 (https://arxiv.org/abs/2506.13585).
- ``sapo``: -sigmoid(t (r - 1)) (4 / t) A. The temperature t is the first of SAPO_TEMPERATURES where A is positive, and
  the second elsewhere. The gradient is that of ``ppo`` at r = 1, and fades on both sides
  (https://arxiv.org/abs/2511.20347).
"""

import torch

from grpo.settings.table import CLIPPING_LOSSES
from grpo.stack.upstream.arguments import Arguments


def compute_token_losses(
    log_probs: torch.Tensor, ratio: torch.Tensor, advantages: torch.Tensor, args: Arguments
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of each token, ``[B, A]``, and values of that shape to average as metrics.

    - ``clip_ratio_low``: 1 if the ratio of a token with a negative advantage was clipped at the lower bound, else 0.
    - ``clip_ratio_high``: the same with a positive advantage at the upper bound. For ``cispo``, the sign does not
      matter. ``sapo`` clips nothing.

    Args:
        log_probs, ratio, advantages: ``[B, A]``.

    Raises:
        ValueError: for an unknown loss.
    """
    kind = args.policy_loss_type
    if kind in CLIPPING_LOSSES:
        return _clip(ratio, advantages, args)
    nothing = torch.zeros_like(ratio)
    if kind == "cispo":
        is_cut = (ratio > args.cispo_max_ratio) & (advantages != 0)
        loss = -ratio.detach().clamp(max=args.cispo_max_ratio) * advantages * log_probs
        return loss, {"clip_ratio_low": nothing, "clip_ratio_high": is_cut.float()}
    if kind == "sapo":
        positive, other = args.sapo_temperatures
        temperature = torch.full_like(ratio, other).masked_fill(advantages > 0, positive)
        loss = -torch.sigmoid(temperature * (ratio - 1)) * (4 / temperature) * advantages
        return loss, {"clip_ratio_low": nothing, "clip_ratio_high": nothing}
    raise ValueError(f"unknown policy loss {kind!r}: ppo, gspo, cispo and sapo are known")


def _clip(
    ratio: torch.Tensor, advantages: torch.Tensor, args: Arguments
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    low, high = args.eps_clip_low_high
    plain, clipped = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    loss = -torch.min(plain, clipped)
    if args.dual_clip is not None:  # https://arxiv.org/abs/1912.09729
        loss = torch.where(advantages < 0, torch.min(loss, -args.dual_clip * advantages), loss)
    is_clipped = clipped < plain
    return loss, {
        "clip_ratio_low": (is_clipped & (advantages < 0)).float(),
        "clip_ratio_high": (is_clipped & (advantages > 0)).float(),
    }
