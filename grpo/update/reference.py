"""The reference policy of a KL penalty without a second model: the actor with its adapter off."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from peft.tuners.lora import LoraLayer
from torch import nn

from grpo.lora import adapter
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.trainer import ActorGroup

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef


def is_actor(args: Arguments) -> bool:
    """Return whether a KL is used and the actor without its adapter is the reference."""
    return bool(args.init_kl_coef > 0 and adapter.is_trained(args))


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


class ActorAsReference:
    """Replaces OpenRLHF's group of reference models: asks the actors, with their adapter off.

    Args:
        actors: OpenRLHF's ``RayActorGroup`` of ``PolicyModelActor``.
    """

    def __init__(self, actors: ActorGroup) -> None:
        self._actors = actors

    def async_run_method_batch(self, method_name: str, **batches: "list[torch.Tensor]") -> "list[ObjectRef[Any]]":
        """Start the passes for the reference's log-probs; the actors run them after their earlier calls."""
        return self._actors.async_run_method_batch(method_name=f"reference_{method_name}", **batches)

    def async_run_method(self, method_name: str, **kwargs: Any) -> "list[ObjectRef[Any]]":
        """Pass on methods that concern only the device, such as "empty_cache"."""
        return self._actors.async_run_method(method_name=method_name, **kwargs)

    def async_init_model_from_pretrained(self, *_: object, **__: object) -> "list[ObjectRef[Any]]":
        """Return []: the reference has no model to load."""
        return []
