"""Attention with sinks on a GPU: Triton kernels for the forward and the backward pass.

The algorithm is FlashAttention-2's (https://arxiv.org/abs/2307.08691). A sink is where each row's softmax starts: a
maximum and a sum before the first key. It therefore costs nothing, and a row that sees no key has a result of zero.

The kernels take any length without being compiled again. No sum depends on the order in which the GPU schedules its
threads. With ``TRITON_INTERPRET=1`` in the environment before the import, they run on the CPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634  # kernels compute powers of 2; they spell it out, since Triton refuses plain globals
_ROWS = 64  # of queries, and of keys, that a program holds; 128 would not fit in the registers
_EVERYTHING = 1 << 30  # the window of a layer without one


@triton.jit
def _rows(pointer, strides, batch, head, index, length, D: tl.constexpr, BD: tl.constexpr):
    """Load rows of a ``[B, H, L, D]`` tensor; zeros beyond the length."""
    column = tl.arange(0, BD)
    start = pointer + batch.to(tl.int64) * strides[0] + head * strides[1]
    inside = (index < length)[:, None] & (column < D)[None, :]
    return tl.load(start + index.to(tl.int64)[:, None] * strides[2] + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store(pointer, strides, batch, head, index, length, values, D: tl.constexpr, BD: tl.constexpr):
    """Store rows of a ``[B, H, L, D]`` tensor."""
    column = tl.arange(0, BD)
    start = pointer + batch.to(tl.int64) * strides[0] + head * strides[1]
    inside = (index < length)[:, None] & (column < D)[None, :]
    target = start + index.to(tl.int64)[:, None] * strides[2] + column[None, :]
    tl.store(target, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _places(tokens, batch, key, length):
    """Load where keys stand in their sequence; padding stands behind every query."""
    is_token = tl.load(tokens + batch.to(tl.int64) * length + key, mask=key < length, other=0) != 0
    return tl.where(is_token, key, 2147483647)


@triton.jit
def _visible(query, place, window):
    """Return which keys the queries see. The arguments have shapes that broadcast."""
    # As an unsigned number, a negative distance is beyond every window: one comparison does for two.
    return (query - place).to(tl.uint32, bitcast=True) < window


@triton.jit
def _forward(
    q, k, v, sinks, tokens, out, log_sums, q_strides, k_strides, v_strides, out_strides,
    heads, length, padded, window, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block, batch, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    query = block * BM + tl.arange(0, BM)
    queries = _rows(q, q_strides, batch, head, query, length, D, BD)
    maximum = tl.zeros((BM,), dtype=tl.float32) + tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
    total = tl.zeros((BM,), dtype=tl.float32) + 1.0
    result = tl.zeros((BM, BD), dtype=tl.float32)
    first = tl.maximum(block * BM - window + 1, 0) // BN * BN
    for start in range(first, tl.minimum((block + 1) * BM, length), BN):
        key = start + tl.arange(0, BN)
        keys = _rows(k, k_strides, batch, head // GROUP, key, length, D, BD)
        values = _rows(v, v_strides, batch, head // GROUP, key, length, D, BD)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        seen = _visible(query[:, None], _places(tokens, batch, key, length)[None, :], window)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(maximum, tl.max(scores, 1))
        shrink = tl.exp2(maximum - new)
        weights = tl.exp2(scores - new[:, None])
        total = total * shrink + tl.sum(weights, 1)
        result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None])
        maximum = new
    _store(out, out_strides, batch, head, query, length, result / total[:, None], D, BD)
    log_sum = tl.where(query < length, maximum + tl.log2(total), float("inf"))  # no weight in backward
    tl.store(log_sums + tl.program_id(1).to(tl.int64) * padded + query, log_sum)


@triton.jit
def _deltas(
    out, d_out, deltas, out_strides, d_out_strides, heads, length, padded,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Compute ``sum(d_out * out)`` of each query and head: what its scores' gradients have in common."""
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    query = tl.program_id(0) * BM + tl.arange(0, BM)
    results = _rows(out, out_strides, batch, head, query, length, D, BD).to(tl.float32)
    gradients = _rows(d_out, d_out_strides, batch, head, query, length, D, BD).to(tl.float32)
    tl.store(deltas + tl.program_id(1).to(tl.int64) * padded + query, tl.sum(results * gradients, 1))


@triton.jit
def _backward_keys(
    q, k, v, tokens, d_out, log_sums, deltas, d_k, d_v, q_strides, k_strides, v_strides, d_out_strides, d_k_strides,
    heads, length, padded, window, scale, factor,
    GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, summed over the queries of its group of heads."""
    block, batch, head = tl.program_id(0), tl.program_id(1) // (heads // GROUP), tl.program_id(1) % (heads // GROUP)
    key = block * BN + tl.arange(0, BN)
    keys = _rows(k, k_strides, batch, head, key, length, D, BD)
    values = _rows(v, v_strides, batch, head, key, length, D, BD)
    places = _places(tokens, batch, key, length)
    of_keys = tl.zeros((BN, BD), dtype=tl.float32)
    of_values = tl.zeros((BN, BD), dtype=tl.float32)
    last = tl.minimum(length, (block + 1) * BN + window - 1)
    for member in range(GROUP):
        of_head = head * GROUP + member
        row = (batch * heads + of_head).to(tl.int64) * padded
        for start in range(block * BN // BM * BM, last, BM):
            query = start + tl.arange(0, BM)
            queries = _rows(q, q_strides, batch, of_head, query, length, D, BD)
            gradients = _rows(d_out, d_out_strides, batch, of_head, query, length, D, BD)
            log_sum = tl.load(log_sums + row + query)
            delta = tl.load(deltas + row + query)
            scores = tl.dot(keys, tl.trans(queries)) * scale
            seen = _visible(query[None, :], places[:, None], window)
            weights = tl.where(seen, tl.exp2(scores - log_sum[None, :]), 0.0)
            of_values = tl.dot(weights.to(gradients.dtype), gradients, of_values)
            of_scores = weights * (tl.dot(values, tl.trans(gradients)) - delta[None, :])
            of_keys = tl.dot(of_scores.to(queries.dtype), queries, of_keys)
    _store(d_k, d_k_strides, batch, head, key, length, of_keys * factor, D, BD)
    _store(d_v, d_k_strides, batch, head, key, length, of_values, D, BD)


@triton.jit
def _backward_queries(
    q, k, v, tokens, d_out, log_sums, deltas, d_q, q_strides, k_strides, v_strides, d_out_strides, d_q_strides,
    heads, length, padded, window, scale, factor,
    GROUP: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries."""
    block, batch, head = tl.program_id(0), tl.program_id(1) // heads, tl.program_id(1) % heads
    query = block * BM + tl.arange(0, BM)
    queries = _rows(q, q_strides, batch, head, query, length, D, BD)
    gradients = _rows(d_out, d_out_strides, batch, head, query, length, D, BD)
    row = tl.program_id(1).to(tl.int64) * padded
    log_sum = tl.load(log_sums + row + query)
    delta = tl.load(deltas + row + query)
    result = tl.zeros((BM, BD), dtype=tl.float32)
    first = tl.maximum(block * BM - window + 1, 0) // BN * BN
    for start in range(first, tl.minimum((block + 1) * BM, length), BN):
        key = start + tl.arange(0, BN)
        keys = _rows(k, k_strides, batch, head // GROUP, key, length, D, BD)
        values = _rows(v, v_strides, batch, head // GROUP, key, length, D, BD)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        seen = _visible(query[:, None], _places(tokens, batch, key, length)[None, :], window)
        weights = tl.where(seen, tl.exp2(scores - log_sum[:, None]), 0.0)
        of_scores = weights * (tl.dot(gradients, tl.trans(values)) - delta[:, None])
        result = tl.dot(of_scores.to(keys.dtype), keys, result)
    _store(d_q, d_q_strides, batch, head, query, length, result * factor, D, BD)


class SinkAttention(torch.autograd.Function):
    """Exact attention with sinks. Its arguments are those of :class:`grpo.model.attention.ChunkedAttention`."""

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
        query, key, value = (_last_contiguous(values) for values in (query, key, value))
        batch, heads, length, size = query.shape
        # In the order [B, L, H, D], which the output projection reads.
        out = torch.empty(batch, length, heads, size, dtype=query.dtype, device=query.device).transpose(1, 2)
        padded = triton.cdiv(length, _ROWS) * _ROWS  # so that no load of a row's sum needs a mask
        log_sums = torch.empty(batch, heads, padded, dtype=torch.float32, device=query.device)
        ctx.shape = dict(GROUP=heads // key.shape[1], D=size, BD=max(16, triton.next_power_of_2(size)))
        ctx.shape |= dict(BM=_ROWS, BN=_ROWS)
        ctx.numbers = heads, length, padded, _EVERYTHING if window is None else window, scaling * LOG2_E
        ctx.scaling = scaling
        _forward[(triton.cdiv(length, _ROWS), batch * heads)](
            query, key, value, sinks, tokens, out, log_sums, *_strides(query, key, value, out),
            *ctx.numbers, **ctx.shape, num_warps=4, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, sinks, tokens, out, log_sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, sinks, tokens, out, log_sums = ctx.saved_tensors
        d_out = _last_contiguous(gradients[0])
        batch, heads, length, _ = query.shape
        deltas = torch.empty_like(log_sums)
        of_shape = {name: ctx.shape[name] for name in ("D", "BD", "BM")}
        _deltas[(triton.cdiv(length, _ROWS), batch * heads)](
            out, d_out, deltas, *_strides(out, d_out), heads, length, deltas.shape[2], **of_shape
        )
        d_query, d_key, d_value = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
        shared = query, key, value, tokens, d_out, log_sums, deltas
        _backward_keys[(triton.cdiv(length, _ROWS), batch * key.shape[1])](
            *shared, d_key, d_value, *_strides(query, key, value, d_out, d_key),
            *ctx.numbers, ctx.scaling, **ctx.shape, num_warps=4, num_stages=2,
        )  # fmt: skip
        _backward_queries[(triton.cdiv(length, _ROWS), batch * heads)](
            *shared, d_query, *_strides(query, key, value, d_out, d_query),
            *ctx.numbers, ctx.scaling, **ctx.shape, num_warps=4, num_stages=2,
        )  # fmt: skip
        of_sinks = torch.exp2(sinks.float()[:, None] * LOG2_E - log_sums) * deltas
        return d_query, d_key, d_value, -of_sinks.sum((0, 2)).to(sinks.dtype), None, None, None


def _last_contiguous(values: torch.Tensor) -> torch.Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


def _strides(*tensors: torch.Tensor) -> list[tuple[int, ...]]:
    return [tensor.stride()[:3] for tensor in tensors]
