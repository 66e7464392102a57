"""Checks the attention that a run will use, on the model's own shapes, before anything is trained with it.

An attention that drops gpt-oss's sinks, or the window, gives plausible numbers and no error.
"""

from typing import TYPE_CHECKING

import torch

from grpo.model import attention
from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from transformers import GptOssConfig

LENGTH = 300  # tokens: more than a block of queries, and more than two windows of gpt-oss
LIMIT = 0.02  # of the norm; bf16 rounds by 0.002, and lost sinks differ by more than 0.1


def check(config: "GptOssConfig", device: torch.device) -> None:
    """Compare attention with sinks in bf16 with its definition in float64, for each kind of layer.

    Raises:
        UserError: if result or gradients differ by more than rounding does.
    """
    windows = {config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types}
    for window in sorted(windows, key=str):
        error = _error(config, window, device)
        if not error < LIMIT:
            kind = f"a window of {window}" if window else "full attention"
            raise UserError(
                f"attention with sinks is wrong on {device} for {kind}: it differs by {error:.1%} from its definition",
                "set --attn_implementation eager, and report the device and the versions of PyTorch and Triton",
            )


def definition(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    mask: attention.SinkMask,
    scaling: float,
) -> torch.Tensor:
    """Return attention as gpt-oss defines it, ``[B, H, L, D]``: a softmax with one more column, which has no value."""
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    visible = mask.visible(slice(0, length), slice(0, length))[:, :, 0]
    scores = (query @ key.transpose(-1, -2) * scaling).masked_fill(~visible, -torch.inf)
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ value


@torch.enable_grad()
def _error(config: "GptOssConfig", window: int | None, device: torch.device) -> float:
    """Return the largest relative error of the result and of the gradients."""
    heads, shared, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, LENGTH, size), (1, shared, LENGTH, size), (1, shared, LENGTH, size), (heads,)]
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator).bfloat16()
    tokens = torch.ones(1, LENGTH, dtype=torch.bool)
    tokens[0, : LENGTH // 10] = False
    scaling = size**-0.5

    exact = [values.double().requires_grad_() for values in inputs]
    expected = definition(exact[0], exact[1], exact[2], exact[3], attention.SinkMask(tokens, window), scaling)
    given = [values.to(device).requires_grad_() for values in inputs]
    mask = attention.SinkMask(tokens.to(device), window)
    result, _ = attention.attend(torch.nn.Module(), given[0], given[1], given[2], mask, scaling, given[3])
    result = result.transpose(1, 2)
    pairs = [(result, expected)]
    pairs += zip(
        torch.autograd.grad(result, given, upstream.to(device)),
        torch.autograd.grad(expected, exact, upstream.double()),
        strict=True,
    )
    return max(((values.cpu().double() - wanted).norm() / wanted.norm()).item() for values, wanted in pairs)
