"""Tokens sorted by expert, so that one grouped product serves all experts, without waiting for the device.

Each token has a row per chosen expert. Sums over a token's rows run in the order in which transformers' loop over the
experts adds them up: ascending in the forward pass, descending in the backward pass. On a CPU, results and gradients
thus equal the loop's bit for bit; and no sum depends on the order in which a GPU schedules its threads.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ExpertRows:
    """The rows of a layer's tokens: ``R = T * k`` for T tokens that choose k experts each.

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


def sort(choices: torch.Tensor, experts: int) -> ExpertRows:
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


def gather(hidden: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
    """Return each row's hidden state, ``[R, H]``, from those of the tokens, ``[T, H]``."""
    return _Gather.apply(hidden, rows.token, rows.position)


def combine(outputs: torch.Tensor, weights: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
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
        total = gradients[0][last]
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
