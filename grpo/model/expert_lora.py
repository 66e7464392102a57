"""LoRA on gpt-oss's experts: an adapter for each expert and projection, in grouped products beside the frozen weights.

The layers are PEFT's own kind (``LoraLayer``), so PEFT adds, scales, freezes, and switches them as those of the
attention. Its layer for experts (``ParamWrapper``) does not fit: it adds the product of all experts' adapters to a
weight in bf16, which packed weights do not have, and which would take as much memory as the experts do.

An adapter has the rank R of its experts and the scale of the whole adapter, lora_alpha / r: vLLM knows no other.
Its A starts r / R times as large in exchange. Experts thus learn as fast at first as with lora_alpha / R, the scale
that makes the learning rate independent of the rank ("LoRA Without Regret": updates are proportional to the scale times
the size of A at the start).
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import GptOssForCausalLM

from grpo.model.architecture import EXPERT_PROJECTIONS, EXPERTS_TARGET

_UNIT = 8  # grouped products want rows of a multiple of 16 bytes


class GroupedLinear(nn.Module):
    """A trainable linear layer for each expert; ``weight`` is ``[E, out, in]``, of the dtype and device of ``like``."""

    def __init__(self, experts: int, inputs: int, outputs: int, like: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(like.new_zeros(experts, outputs, inputs))

    def forward(self, x: torch.Tensor, ends: torch.Tensor, onto: torch.Tensor | None = None) -> torch.Tensor:
        """Return the products of rows that are sorted by expert, ``[R, out]``, added to ``onto``.

        Widths are padded with zeros to a multiple of 8, which leaves columns of zeros in the result.

        Args:
            x: ``[R, in]``.
            ends: the row after the last one of each expert, int32 ``[E]``.
            onto: ``[R, out]``.
        """
        _, outputs, inputs = self.weight.shape
        missing = -inputs % _UNIT, -outputs % _UNIT
        weight = nn.functional.pad(self.weight, (0, missing[0], 0, missing[1])) if any(missing) else self.weight
        return _GroupedLinear.apply(x, ends, weight, onto)


class _GroupedLinear(torch.autograd.Function):
    """Saves the weight itself and no view of it: a view would keep alive what ZeRO-3 gathered."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, ends: torch.Tensor, weight: torch.Tensor, onto: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, ends, weight)
        result = torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)
        return result if onto is None else result.add_(onto)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, ends, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        d_weight = None
        if ctx.needs_input_grad[2]:
            d_weight = torch._grouped_mm(gradient.t(), x, offs=ends)
            # On some GPUs PyTorch leaves the memory of an expert without rows as it was (pytorch#172439).
            is_empty = ends.diff(prepend=ends.new_zeros(1)) == 0
            d_weight.masked_fill_(is_empty[:, None, None], 0)
        d_x = torch._grouped_mm(gradient, weight, offs=ends) if ctx.needs_input_grad[0] else None
        return d_x, None, d_weight, gradients[0] if ctx.needs_input_grad[3] else None


class ExpertLora(nn.Module, LoraLayer):
    """The adapters of a projection of all experts of a layer: A ``[E, R, in]`` and B ``[E, out, R]`` by their names.

    Args:
        weight_shape: of the projection, ``[E, in, out]``.
        rank: R.
        like: of the dtype and device that the adapters get.
    """

    def __init__(self, weight_shape: tuple[int, int, int], rank: int, like: torch.Tensor) -> None:
        nn.Module.__init__(self)
        self._shape, self.rank, self._like = weight_shape, rank, like.new_empty(0)  # holds only dtype and device
        LoraLayer.__init__(self, nn.Identity())  # the frozen product is that of the layer's experts

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        del module  # PEFT's own would look at its weight: the frozen layer here is an Identity
        _, inputs, outputs = self._shape
        return inputs, outputs

    def update_layer(self, adapter_name: str, r: int, lora_alpha: float, config: Any, **_: Any) -> None:
        """Add an adapter that changes nothing at first, as PEFT calls it; ``r`` and ``lora_alpha`` give the scale."""
        self.r[adapter_name], self.lora_alpha[adapter_name] = self.rank, lora_alpha
        self.scaling[adapter_name] = lora_alpha / r
        experts, inputs, outputs = self._shape
        a = GroupedLinear(experts, inputs, self.rank, self._like)
        bound = r / self.rank / math.sqrt(inputs)  # PEFT's, r / R times
        nn.init.uniform_(a.weight, -bound, bound)
        self.lora_A[adapter_name] = a
        self.lora_B[adapter_name] = GroupedLinear(experts, self.rank, outputs, self._like)
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def forward(self, product: torch.Tensor, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return the frozen weights' product of rows with those of the active adapters, ``[R, out]``.

        Args:
            product: ``[R, out]``.
            x, ends: as for :class:`GroupedLinear`.
        """
        for name in [] if self.disable_adapters else self.active_adapters:
            if name in self.lora_A:
                hidden = self.lora_A[name](x, ends) * self.scaling[name]
                product = self.lora_B[name](hidden, ends, product)
        return product


def attach(model: GptOssForCausalLM, rank: int) -> None:
    """Give the experts of a model room for adapters, which PEFT adds for the modules of :func:`list_target_modules`."""
    # PEFT takes a model with LoRA layers for one that it has made: it would not freeze the base, and warns.
    model.requires_grad_(False)
    warnings.filterwarnings("ignore", "You are trying to modify a model with PEFT for a second time")
    for layer in model.model.layers:
        experts: Any = layer.mlp.experts
        for name, shape in experts.shapes.items():
            experts.adapters[name] = ExpertLora(shape, rank, experts.down_proj_bias)


def list_target_modules(words: Sequence[str]) -> list[str]:
    """Return PEFT's ``target_modules`` for a run's, in which EXPERTS_TARGET stands for the projections of experts."""
    of_experts = [f"experts.adapters.{name}" for name in EXPERT_PROJECTIONS] if EXPERTS_TARGET in words else []
    return [word for word in words if word != EXPERTS_TARGET] + of_experts
