"""gpt-oss's experts in the trainer: grouped products in place of transformers' loop, with packed or bf16 weights.

transformers' ``GptOssExperts`` loops over the experts in Python: 25 kernels and 8 waits for the device each. Here a
layer makes one grouped product per projection and pass for all experts, and never waits: its tokens are sorted by
expert, with a row for each choice.

Packed weights stay as the checkpoint's files hold them, at a quarter of bf16's size. A product unpacks a part of its
weight, uses it, and frees it. The parts are cut so that each number of a result comes from one product: over the
outputs in the forward pass, over the inputs in the backward pass. Results equal those of bf16 weights bit for bit.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM

from grpo.model import mxfp4
from grpo.model.footprint import UNPACKED_BYTES
from grpo.model.routing import WEIGHS_CHOSEN

ALPHA, LIMIT = 1.702, 7.0  # of the activation; constants of transformers' GptOssExperts
P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile an elementwise function for GPUs into one kernel, for all shapes. Its first argument tells the device."""

    @functools.cache
    def compile_function() -> Callable[P, R]:  # at its first use: importing the compiler takes seconds
        return torch.compile(function, dynamic=True)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        first = arguments[0]
        on_gpu = isinstance(first, torch.Tensor) and first.is_cuda
        return (compile_function() if on_gpu else function)(*arguments, **options)

    return call


class Experts(nn.Module):
    """The experts of a layer, frozen but for adapters; a drop-in for transformers' ``GptOssExperts``.

    Its parameters have the names of the checkpoint's tensors. ``gate_up_proj`` ``[E, H, 2I]`` and ``down_proj``
    ``[E, I, H]`` are bf16, or stand packed as ``*_blocks`` uint8 ``[E, out, in / 32, 16]`` and ``*_scales`` uint8
    ``[E, out, in / 32]``.

    Attributes:
        shapes: ``[E, in, out]`` of each weight in bf16, by its name.
        adapters: :class:`grpo.model.expert_lora.ExpertLora` by the weights' names; empty if experts are not trained.
    """

    gate_up_proj_bias: nn.Parameter
    down_proj_bias: nn.Parameter

    def __init__(self, config: GptOssConfig, packed: bool) -> None:
        super().__init__()
        self.num_experts = experts = config.num_local_experts
        hidden, inner = config.hidden_size, config.intermediate_size
        self.adapters = nn.ModuleDict()
        self.shapes = {"gate_up_proj": (experts, hidden, 2 * inner), "down_proj": (experts, inner, hidden)}
        self._weights: dict[str, tuple[str, ...]] = {}
        for name, (_, inputs, outputs) in self.shapes.items():
            shape = (experts, outputs, inputs // mxfp4.GROUP)
            if packed:
                self._register_frozen(f"{name}_blocks", torch.empty(*shape, mxfp4.GROUP // 2, dtype=torch.uint8))
                self._register_frozen(f"{name}_scales", torch.empty(shape, dtype=torch.uint8))
                self._weights[name] = (f"{name}_blocks", f"{name}_scales")
            else:
                self._register_frozen(name, torch.empty(experts, inputs, outputs))
                self._weights[name] = (name,)
            self._register_frozen(f"{name}_bias", torch.empty(experts, outputs))

    def _register_frozen(self, name: str, values: torch.Tensor) -> None:
        self.register_parameter(name, nn.Parameter(values, requires_grad=False))

    def forward(
        self, hidden_states: torch.Tensor, router_indices: torch.Tensor, routing_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the layer's result, of the shape of ``hidden_states``.

        Args:
            hidden_states: ``[B, L, H]``, or ``[B * L, H]`` from transformers 5 on.
            router_indices: the experts that each token chose, long ``[B * L, k]``.
            routing_weights: of the choices, ``[B * L, k]``; before transformers 5 of all experts, ``[B * L, E]``.
        """
        choices, order = router_indices.sort(dim=-1)
        rows = sort_rows(choices, self.num_experts)
        states = gather_rows(hidden_states.reshape(-1, hidden_states.shape[-1]), rows)
        gate_up = self._product("gate_up_proj", states, rows)
        active = activate(gate_up, self.gate_up_proj_bias, rows.expert)
        outputs = self._product("down_proj", active, rows) + self.down_proj_bias[rows.expert]
        combined = combine_rows(outputs, routing_weights.gather(1, order if WEIGHS_CHOSEN else choices), rows)
        return combined.view_as(hidden_states)

    def _product(self, name: str, states: torch.Tensor, rows: "ExpertRows") -> torch.Tensor:
        weight = (getattr(self, part) for part in self._weights[name])
        product: torch.Tensor = _GroupedProduct.apply(states, rows.ends, *weight)
        return self.adapters[name](product, states, rows.ends) if name in self.adapters else product


@fused
def activate(gate_up: torch.Tensor, bias: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Return the activation of rows and their bias, ``[R, I]``.

    Args:
        gate_up: ``[R, 2I]``; gate and up alternate.
        bias: ``[E, 2I]``.
        expert: of each row, long ``[R]``.
    """
    return gate(gate_up + bias[expert])


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gpt-oss's gated activation of rows, ``[R, I]``, from ``[R, 2I]``, in which gate and up alternate."""
    gates = gate_up[..., ::2].clamp(max=LIMIT)
    up = gate_up[..., 1::2].clamp(min=-LIMIT, max=LIMIT)
    return (up + 1) * (gates * torch.sigmoid(gates * ALPHA))


class _GroupedProduct(torch.autograd.Function):
    """``x W`` for rows sorted by expert. The weight is frozen: only ``x`` gets a gradient.

    It saves the parameters themselves and no view of them: a view would keep alive what ZeRO-3 gathered.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ends: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ends, *weight)
        return _join([torch._grouped_mm(x, part, offs=ends) for part in _parts(weight, 1, x.dtype)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ends, *weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        parts = _parts(weight, 2, gradient.dtype)
        d_x = _join([torch._grouped_mm(gradient, part.transpose(1, 2), offs=ends) for part in parts])
        return d_x, None, *(None for _ in weight)


def _join(products: list[torch.Tensor]) -> torch.Tensor:
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def _parts(weight: Any, dim: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield a weight ``[E, in, out]`` in parts: whole if it is bf16, else unpacked along a dimension of the blocks.

    Args:
        weight: the bf16 weight, or its blocks and scales.
        dim: 1 for parts of the outputs, 2 for parts of the inputs.
    """
    if len(weight) == 1:
        yield weight[0]
        return
    blocks, scales = weight
    unit = 8 if dim == 1 else 1  # grouped products want rows of a multiple of 16 bytes
    count = -(-blocks.numel() * 2 * dtype.itemsize // UNPACKED_BYTES)
    size = -(-blocks.shape[dim] // (count * unit)) * unit
    for start in range(0, blocks.shape[dim], size):
        length = min(size, blocks.shape[dim] - start)
        yield mxfp4.unpack_weights(blocks.narrow(dim, start, length), scales.narrow(dim, start, length), dtype)


def install(model: GptOssForCausalLM, packed: bool) -> None:
    """Replace the experts of each layer of a model on the meta device."""
    for layer in model.model.layers:
        with torch.device("meta"):
            layer.mlp.experts = Experts(model.config, packed)


@dataclass(frozen=True)
class ExpertRows:
    """The rows of a layer's tokens: ``R = T * k`` for T tokens that choose k experts each.

    Sums over a token's rows run in the order in which transformers' loop over the experts adds them up: ascending in
    the forward pass, descending in the backward pass. On a CPU, results and gradients thus equal the loop's bit for
    bit; and no sum depends on the order in which a GPU schedules its threads.

    Attributes:
        token: the token of each row, long ``[R]``.
        expert: the expert of each row, long ``[R]``, ascending.
        ends: the row after the last one of each expert, int32 ``[experts]``.
        position: the row of each token's choices, in ascending order of their experts, long ``[T, k]``.
    """

    token: torch.Tensor
    expert: torch.Tensor
    ends: torch.Tensor
    position: torch.Tensor


def sort_rows(choices: torch.Tensor, experts: int) -> ExpertRows:
    """Return the rows of tokens.

    Args:
        choices: the chosen experts, long ``[T, k]``, ascending in each row.
        experts: how many experts there are.
    """
    expert, order = choices.flatten().sort(stable=True)
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device)
    ends = torch.searchsorted(expert, torch.arange(experts, device=order.device), right=True, out_int32=True)
    return ExpertRows(order // choices.shape[1], expert, ends, position.view_as(choices))


def gather_rows(hidden: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
    """Return each row's hidden state, ``[R, H]``, from those of the tokens, ``[T, H]``."""
    return _Gather.apply(hidden, rows.token, rows.position)


def combine_rows(outputs: torch.Tensor, weights: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
    """Return the weighted sum of each token's rows, ``[T, H]``.

    Args:
        outputs: of the experts, ``[R, H]``.
        weights: of each token's choices, ``[T, k]``, in the order of ``rows.position``.
    """
    return _Combine.apply(outputs, weights, rows.token, rows.position)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(position)
        return hidden[token]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (position,) = ctx.saved_tensors
        *others, last = position.unbind(1)
        total = gradients[0][last]  # a copy, which the loop may change
        for rows in reversed(others):
            total += gradients[0][rows]
        return total, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: torch.Tensor, weights: torch.Tensor, token: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(outputs, weights, token, position)
        total = outputs.new_zeros(len(position), outputs.shape[1])
        for choice in range(position.shape[1]):
            total += outputs[position[:, choice]] * weights[:, choice, None]
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        outputs, weights, token, position = ctx.saved_tensors
        of_rows = gradients[0][token]
        weight_of_rows = torch.empty_like(token, dtype=weights.dtype)
        weight_of_rows[position] = weights
        d_weights = (of_rows * outputs).sum(-1)[position] if ctx.needs_input_grad[1] else None
        return of_rows.mul_(weight_of_rows.unsqueeze(-1)), d_weights, None, None
