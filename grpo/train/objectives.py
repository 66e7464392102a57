"""The loss of a token, from the ratio of policies, the advantage and the log-prob; one for each --policy_loss_type.

A new loss is a function and its entry in :data:`LOSSES`; --policy_loss_type, the checks and the plan follow from it. A
flag of its own stands in :mod:`grpo.flags.ours`. Imports no torch, since the launcher reads the entries.

Let r be the ratio of the trained policy to the one that sampled, p the trained policy's log-prob, and A the advantage.

- ``ppo``: -min(r A, clip(r, 1 - low, 1 + high) A). A token has no gradient once r is beyond the bound to which A moves
  it (https://arxiv.org/abs/1707.06347).
- ``gspo``: the same, where r belongs to the whole rollout: the exponential of its mean log ratio
  (https://arxiv.org/abs/2507.18071).
- ``cispo``: -min(r, --cispo_max_ratio) A p, with the minimum as a constant. Every token keeps a gradient, and the bound
  limits its weight. There is no lower bound, as in MiniMax-M1 (https://arxiv.org/abs/2506.13585).
- ``sapo``: -sigmoid(t (r - 1)) (4 / t) A. The temperature t is the first of --sapo_temperatures where A is positive,
  and the second elsewhere. The gradient is that of ``ppo`` at r = 1, and fades on both sides
  (https://arxiv.org/abs/2511.20347).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from grpo.stack.upstream import Arguments

if TYPE_CHECKING:
    from torch import Tensor

_CLIP = ("--eps_clip", "--eps_clip_low_high", "--dual_clip")


class Loss(NamedTuple):
    """A --policy_loss_type.

    Attributes:
        compute: returns the loss of each token, ``[B, A]``, and values of that shape to average as metrics. It gets
            the log-probs, the ratios, the advantages, and the arguments. The metrics are ``clip_ratio_low``: 1 if the
            ratio of a token with a negative advantage was clipped at the lower bound, and ``clip_ratio_high``: the
            same with a positive advantage at the upper bound. One that is missing is 0 for all tokens.
        reads: the settings and flags of the loss alone.
        of_rollout: whether the tokens of a rollout share one ratio.
    """

    compute: Callable[[Tensor, Tensor, Tensor, Arguments], tuple[Tensor, dict[str, Tensor]]]
    reads: tuple[str, ...] = ()
    of_rollout: bool = False


def _clip(log_probs: Tensor, ratio: Tensor, advantages: Tensor, args: Arguments) -> tuple[Tensor, dict[str, Tensor]]:
    low, high = args.eps_clip_low_high  # OpenRLHF fills it from --eps_clip unless it is given
    plain, clipped = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    loss = -plain.minimum(clipped)
    if args.dual_clip is not None:  # https://arxiv.org/abs/1912.09729
        loss = loss.minimum(-args.dual_clip * advantages).where(advantages < 0, loss)
    is_clipped = clipped < plain  # the minimum took the clipped one, so the token has no gradient
    return loss, {
        "clip_ratio_low": (is_clipped & (advantages < 0)).float(),
        "clip_ratio_high": (is_clipped & (advantages > 0)).float(),
    }


def _cispo(log_probs: Tensor, ratio: Tensor, advantages: Tensor, args: Arguments) -> tuple[Tensor, dict[str, Tensor]]:
    # The ratio is a constant weight here; without detach, tokens beyond the bound would lose their gradient, as in PPO.
    loss = -ratio.detach().clamp(max=args.cispo_max_ratio) * advantages * log_probs
    return loss, {"clip_ratio_high": ((ratio > args.cispo_max_ratio) & (advantages != 0)).float()}


def _sapo(log_probs: Tensor, ratio: Tensor, advantages: Tensor, args: Arguments) -> tuple[Tensor, dict[str, Tensor]]:
    positive, other = args.sapo_temperatures
    temperature = ratio.new_full(ratio.shape, other).masked_fill(advantages > 0, positive)
    return -(temperature * (ratio - 1)).sigmoid() * (4 / temperature) * advantages, {}


LOSSES = {
    "ppo": Loss(_clip, _CLIP),
    "gspo": Loss(_clip, _CLIP, of_rollout=True),
    "cispo": Loss(_cispo, ("--cispo_max_ratio",)),
    "sapo": Loss(_sapo, ("--sapo_temperatures",)),
}


def compute_token_losses(
    log_probs: Tensor, ratio: Tensor, advantages: Tensor, args: Arguments
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of each token and the values to average as metrics: see :class:`Loss`.

    Args:
        log_probs, ratio, advantages: ``[B, A]``.

    Raises:
        KeyError: for an unknown loss, which the launcher refuses.
    """
    loss, metrics = LOSSES[args.policy_loss_type].compute(log_probs, ratio, advantages, args)
    nothing = ratio.new_zeros(ratio.shape)
    return loss, {"clip_ratio_low": nothing, "clip_ratio_high": nothing} | metrics


def is_read(name: str, loss: str) -> bool:
    """Return whether a loss reads a setting or flag: its own, or one that belongs to no loss."""
    owners = {owner for owner, entry in LOSSES.items() if name in entry.reads}
    return not owners or loss in owners
