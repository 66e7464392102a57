"""The reference policy of a KL penalty without a second model: the actor as it was when the run started.

That is the actor without its adapter. A run that starts from an adapter holds a second, frozen copy of it for this.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import nn

MOST_KL = 10.0  # of a token, in nat, as OpenRLHF's
MOST_WEIGHT = 10.0  # of a token in the KL loss, as OpenRLHF's
TRAINED, START = "default", "start"  # PEFT's names of the adapters


def keep_start(model: PeftModel) -> None:
    """Add a frozen copy of the adapter that counts in passes of the reference alone. Before ZeRO-3 partitions it."""
    model.add_adapter(START, copy.copy(model.peft_config[TRAINED]), autocast_adapter_dtype=False)
    tuner: Any = model.base_model
    tuner.set_adapter([TRAINED, START])  # PeftModel's own takes one
    for name, parameter in model.named_parameters():
        if f".{START}." in name:
            parameter.data.copy_(model.get_parameter(name.replace(f".{START}.", f".{TRAINED}.")))
            parameter.requires_grad_(False)
    for layer in _layers(model):
        layer.scaling[START] = 0.0  # active, so that ZeRO-3 sees the same modules in each pass, and without effect


def without_adapter(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Make ``model`` answer as the base model within the context."""
    return _enable_only(model, None)


def as_reference(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Make ``model`` answer as the reference within the context."""
    return _enable_only(model, START)


@contextlib.contextmanager
def _enable_only(model: nn.Module, name: str | None) -> Iterator[None]:
    """Give all adapters except ``name`` a scale of 0: base + 0 * update equals the base's output bit for bit.

    PEFT's ``disable_adapter`` skips the adapter's modules instead. ZeRO-3 prefetches parameters in the order of the
    last pass. Each switch between passes with and without those modules makes it forget that order and wait for every
    parameter. ``disable_adapter`` also toggles the adapter's ``requires_grad`` under the optimizer.
    """
    layers = _layers(model)
    scales = [layer.scaling for layer in layers]
    for layer in layers:
        layer.scaling = {each: layer.scaling[TRAINED] if each == name else 0.0 for each in layer.scaling}
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling = scale


def _layers(model: nn.Module) -> list[LoraLayer]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def estimate_kl(log_probs: torch.Tensor, base: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return an estimate of the KL of the policy from the reference at each token, ``[B, A]``.

    Schulman's three (http://joschu.net/blog/kl-approx.html): k1, the log ratio; k2, half its square; k3, which is
    unbiased and not negative. They are good estimates and bad losses, see :func:`compute_kl_losses`.

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


def compute_kl_losses(log_probs: torch.Tensor, old_log_probs: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return for each token a loss whose mean gradient is that of the KL of the policy from the reference, ``[B, A]``.

    Let l be the log ratio of the policy to the reference, and w the ratio of the policy to the one that sampled, as a
    constant. The loss is w l^2 / 2. Its gradient is w l times that of the log-prob. Of the estimates, only k2 has this
    gradient, and only where w is 1. The mean gradient of k1 is 0, and that of k3 belongs to the KL of the reference
    from the policy.

    Args:
        log_probs, old_log_probs, base: of the policy, of the one that sampled, and of the reference, ``[B, A]``.
    """
    # Importance weights: the rollouts are of the old policy, and the KL is an expectation under the new one.
    weight = (log_probs.detach() - old_log_probs).exp().clamp(max=MOST_WEIGHT)
    return weight * (log_probs - base) ** 2 / 2


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of ``values`` ``[B, A]`` over the sampled tokens of each row, ``[B]``; 0 for a row without."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
