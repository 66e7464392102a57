"""The reference policy of a KL penalty without a second model: the actor with its adapter off."""

import contextlib
from collections.abc import Iterator

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

MOST_KL = 10.0  # of a token, in nat, as OpenRLHF's


@contextlib.contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Make ``model`` answer as the base model by a scale of 0: base + 0 * update equals the base's output bit for bit.

    PEFT's ``disable_adapter`` skips the adapter's modules instead. ZeRO-3 prefetches parameters in the order of the
    last pass. Each switch between passes with and without those modules makes it forget that order and wait for every
    parameter. ``disable_adapter`` also toggles the adapter's ``requires_grad`` under the optimizer.
    """
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    scales = [layer.scaling for layer in layers]
    for layer in layers:
        layer.scaling = dict.fromkeys(layer.scaling, 0.0)
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling = scale


def kl_of(log_probs: torch.Tensor, base: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return an estimate of the KL of the policy from the reference at each token, ``[B, A]``.

    Schulman's three (http://joschu.net/blog/kl-approx.html): k1, the log ratio; k2, half its square; k3, which is
    unbiased and not negative.

    Args:
        log_probs, base: of the policy and of the reference, ``[B, A]``.
    """
    log_ratio = log_probs.float() - base.float()
    if estimator == "k2":
        log_ratio = log_ratio**2 / 2.0
    elif estimator == "k3":
        log_ratio = -log_ratio
        log_ratio = log_ratio.exp() - 1 - log_ratio
    return log_ratio.clamp(-MOST_KL, MOST_KL)


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of ``values`` ``[B, A]`` over the sampled tokens of each row, ``[B]``; 0 for a row without."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
