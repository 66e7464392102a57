"""Attention with gpt-oss's sinks, in memory linear in the length: for transformers, under the name "sinks".

A sink is a logit per head that takes part in the softmax and has no value. transformers' eager attention holds scores
of ``[heads, length, length]`` several times. FlashAttention has no gradient for sinks.

On a GPU, the kernels of :mod:`grpo.model.attention_triton` compute it. Elsewhere, the same mathematics runs over chunks
of queries, and over the keys that a chunk can see.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from transformers import GptOssConfig

NAME = "sinks"
CHUNK = 256  # queries
CHECKED_LENGTH = 300  # tokens: more than a block of queries, and more than two windows of gpt-oss
ERROR_LIMIT = 0.02  # of the norm; bf16 rounds by 0.002, and lost sinks differ by more than 0.1


@dataclass(frozen=True)
class SinkMask:
    """Which keys a query sees: unpadded keys up to its own position, at most ``window`` of them.

    Attributes:
        tokens: bool ``[B, L]``, contiguous, False for padding.
        window: None for a layer that sees everything.
    """

    tokens: torch.Tensor
    window: int | None

    def visible(self, queries: slice, keys: slice) -> torch.Tensor:
        """Return bool ``[B, 1, 1, queries, keys]``."""
        query = torch.arange(queries.start, queries.stop, device=self.tokens.device)[:, None]
        key = torch.arange(keys.start, keys.stop, device=self.tokens.device)
        seen = key <= query
        if self.window is not None:
            seen &= query - key < self.window
        return (seen & self.tokens[:, None, keys])[:, None, None]


def make_mask(
    batch_size: int,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    cache_position: torch.Tensor | None = None,
    q_length: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> SinkMask:
    """Build the mask of a layer type. transformers calls it once a pass and layer type.

    Args:
        attention_mask: bool ``[B, L]``.
        cache_position: of the queries, ``[L]``, with transformers 4; with 5, ``q_length``, L, and ``device``.
        local_size: the sliding window; None for full attention.

    Raises:
        ValueError: for passes with a cache, which training does not make.
    """
    if cache_position is not None:
        q_length, device = len(cache_position), cache_position.device
    if q_length != kv_length:
        raise ValueError(f"attention '{NAME}' has no key/value cache: use eager attention to generate")
    tokens = attention_mask
    if tokens is None:
        tokens = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    return SinkMask(tokens.contiguous(), local_size)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: SinkMask,
    scaling: float,
    s_aux: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention's result ``[B, L, H, D]``; transformers calls it in each layer.

    Args:
        query: ``[B, H, L, D]``.
        key, value: ``[B, H_kv, L, D]``.
        s_aux: the sinks, ``[H]``.
    """
    mask = attention_mask
    if query.is_cuda:
        from grpo.model.attention_triton import SinkAttention  # here, since Triton is not on every machine

        implementation: Any = SinkAttention
    else:
        implementation = ChunkedAttention
    result = implementation.apply(query, key, value, s_aux, mask.tokens, mask.window, scaling)
    return result.transpose(1, 2).contiguous(), None  # transformers wants a pair, with the weights or None


class ChunkedAttention(torch.autograd.Function):
    """Exact attention with sinks over chunks of queries; backward computes the probabilities again.

    Gradient with respect to a score: ``p * (dp - delta)`` with ``delta = sum(dp * p)``, which equals
    ``sum(d_out * out)`` since a sink has no value. A sink's gradient is ``-p_sink * delta``, summed over queries.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor,
        tokens: torch.Tensor,
        window: int | None,
        scaling: float,
    ) -> torch.Tensor:
        """Return ``[B, H, L, D]``; shapes as in :func:`attend`, mask as in :class:`SinkMask`."""
        mask = SinkMask(tokens, window)
        grouped = _group_heads(query, key)
        out = torch.empty_like(grouped)
        for queries, keys in _chunks(query.shape[2], mask.window):
            probabilities, _ = _attend_to(grouped, key, sinks, mask, scaling, queries, keys)
            part = _fold_heads(probabilities.to(value.dtype)) @ value[:, :, keys]
            out[..., queries, :] = _unfold_heads(part, probabilities)
        ctx.mask, ctx.scaling = mask, scaling
        ctx.save_for_backward(query, key, value, sinks, out)
        return out.view_as(query)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key, value and sinks."""
        query, key, value, sinks, out = ctx.saved_tensors
        grouped, d_out = _group_heads(query, key), _group_heads(gradients[0], key)
        wide = _widen_dtype(query)
        delta = (d_out * out).sum(-1, dtype=wide)
        d_query = torch.empty_like(grouped)
        d_key, d_value, d_sinks = (torch.zeros_like(each, dtype=wide) for each in (key, value, sinks))
        for queries, keys in _chunks(query.shape[2], ctx.mask.window):
            probabilities, of_sinks = _attend_to(grouped, key, sinks, ctx.mask, ctx.scaling, queries, keys)
            part, deltas = _fold_heads(d_out[..., queries, :]), delta[..., queries]
            d_value[:, :, keys] += _fold_heads(probabilities.to(part.dtype)).transpose(-1, -2) @ part
            d_scores = _unfold_heads(part @ value[:, :, keys].transpose(-1, -2), probabilities).to(wide)
            d_scores = d_scores.sub_(deltas.unsqueeze(-1)).mul_(probabilities).mul_(ctx.scaling)
            folded = _fold_heads(d_scores.to(query.dtype))
            d_query[..., queries, :] = _unfold_heads(folded @ key[:, :, keys], probabilities)
            d_key[:, :, keys] += folded.transpose(-1, -2) @ _fold_heads(grouped[..., queries, :])
            d_sinks -= (of_sinks * deltas).sum((0, 3)).flatten()
        d_key, d_value, d_sinks = d_key.to(key.dtype), d_value.to(value.dtype), d_sinks.to(sinks.dtype)
        return d_query.view_as(query), d_key, d_value, d_sinks, None, None, None


def _group_heads(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return ``[B, H, L, D]`` as ``[B, H_kv, H / H_kv, L, D]``: with each key head, its queries."""
    return query.contiguous().unflatten(1, (key.shape[1], -1))


def _fold_heads(values: torch.Tensor) -> torch.Tensor:
    """Return ``[B, H_kv, G, rows, columns]`` as ``[B, H_kv, G * rows, columns]``: one product for a group of heads."""
    return values.flatten(2, 3)


def _unfold_heads(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo :func:`_fold_heads`, with the group and the rows of ``like``."""
    return values.unflatten(2, like.shape[2:4])


def _widen_dtype(values: torch.Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _chunks(length: int, window: int | None) -> list[tuple[slice, slice]]:
    """Return the chunks of queries, each with the range of keys that it can see."""
    chunks = []
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        first = 0 if window is None else max(0, start - window + 1)
        chunks.append((slice(start, stop), slice(first, stop)))
    return chunks


def _attend_to(
    grouped: torch.Tensor,
    key: torch.Tensor,
    sinks: torch.Tensor,
    mask: SinkMask,
    scaling: float,
    queries: slice,
    keys: slice,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probabilities of a chunk's keys, ``[B, H_kv, H / H_kv, queries, keys]``, and of sinks; fp32 or wider.

    On a CPU, PyTorch's ``exp`` takes 20 times longer for -inf, the score of a hidden key. Its softmax does not.
    """
    part = grouped[..., queries, :]
    scores = _unfold_heads(_fold_heads(part) @ key[:, :, keys].transpose(-1, -2), part).to(_widen_dtype(key))
    scores.mul_(scaling).masked_fill_(~mask.visible(queries, keys), -torch.inf)
    sink = sinks.to(scores.dtype).view(1, key.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
    probabilities = torch.cat([scores, sink], -1).softmax(-1)
    return probabilities[..., :-1], probabilities[..., -1]


def register() -> None:
    """Make the attention known to transformers as "sinks", with its mask: without one, padding is lost silently."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionMaskInterface.register(NAME, make_mask)
    AttentionInterface.register(NAME, attend)


def check(config: "GptOssConfig", device: torch.device) -> None:
    """Compare attention with sinks in bf16 with its definition in float64, for each kind of layer, before a run trains.

    An attention that drops gpt-oss's sinks, or the window, gives plausible numbers and no error.

    Raises:
        UserError: if result or gradients differ by more than rounding does.
    """
    windows = {config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types}
    for window in sorted(windows, key=str):  # None does not compare with a number
        error = _find_error(config, window, device)
        if not error < ERROR_LIMIT:
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
    mask: SinkMask,
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
def _find_error(config: "GptOssConfig", window: int | None, device: torch.device) -> float:
    """Return the largest relative error of the result and of the gradients."""
    heads, shared, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    generator = torch.Generator().manual_seed(0)
    of_keys = 1, shared, CHECKED_LENGTH, size
    shapes = [(1, heads, CHECKED_LENGTH, size), of_keys, of_keys, (heads,)]
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator).bfloat16()
    tokens = torch.ones(1, CHECKED_LENGTH, dtype=torch.bool)
    tokens[0, : CHECKED_LENGTH // 10] = False  # on the right, causality alone would hide padding
    scaling = size**-0.5

    exact = [values.double().requires_grad_() for values in inputs]
    expected = definition(exact[0], exact[1], exact[2], exact[3], SinkMask(tokens, window), scaling)
    given = [values.to(device).requires_grad_() for values in inputs]
    mask = SinkMask(tokens.to(device), window)
    result, _ = attend(torch.nn.Module(), given[0], given[1], given[2], mask, scaling, given[3])
    result = result.transpose(1, 2)
    pairs = [(result, expected)]
    pairs += zip(
        torch.autograd.grad(result, given, upstream.to(device)),
        torch.autograd.grad(expected, exact, upstream.double()),
        strict=True,
    )
    return max(((values.cpu().double() - wanted).norm() / wanted.norm()).item() for values, wanted in pairs)
