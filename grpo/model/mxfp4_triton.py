"""Unpacks MXFP4 weights on a GPU in one pass, with Triton. The layout is that of :mod:`grpo.model.mxfp4`.

With ``TRITON_INTERPRET=1`` in the environment before the import, the same kernel runs on the CPU.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 1024  # bytes that one program unpacks


@triton.jit
def _scale(exponents):
    """Return 2**(s - 127) as fp32: infinite for 255, a subnormal number for 0."""
    bits = exponents.to(tl.int32)
    return tl.where(bits == 0, 0x00400000, bits << 23).to(tl.float32, bitcast=True)


@triton.jit
def _bf16_bits(codes, scales):
    """Return the bits of bf16 values in the upper half of an int32, from E2M1 codes in int32.

    Placed at the top of an fp16, a code is its value times 2**-14, subnormal numbers included. The product has at most
    two significant bits, so the upper half of its fp32 is exact.
    """
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    values = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0 * scales
    return values.to(tl.int32, bitcast=True) & -65536


@triton.jit
def _unpack(
    blocks, scales, out, count, block_strides, scale_strides,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    byte, row, expert = index % WIDTH, index // WIDTH % ROWS, index // (WIDTH * ROWS)
    of_row = blocks + expert * block_strides[0] + row * block_strides[1]
    packed = tl.load(of_row + byte, mask=inside, other=0).to(tl.int32)
    of_row = scales + expert * scale_strides[0] + row * scale_strides[1]
    scale = _scale(tl.load(of_row + byte // 16, mask=inside, other=0))
    low = _bf16_bits(packed & 15, scale)
    # Both values of a byte leave in one 32-bit word.
    tl.store(out + index, ((low >> 16) & 0xFFFF) | _bf16_bits(packed >> 4, scale), mask=inside)


def unpack(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return bf16 `[experts, out, in]`, contiguous.

    Args:
        blocks: uint8 `[experts, out, groups, 16]`, a part of a contiguous tensor along `out` or `groups`.
        scales: uint8 `[experts, out, groups]`, the same part.
    """
    experts, rows, groups, size = blocks.shape
    out = torch.empty(experts, rows, groups * 2 * size, dtype=torch.bfloat16, device=blocks.device)
    count = blocks.numel()
    _unpack[(triton.cdiv(count, _BLOCK),)](
        blocks, scales, out.view(torch.int32), count, blocks.stride()[:2], scales.stride()[:2],
        ROWS=rows, WIDTH=groups * size, BLOCK=_BLOCK,
    )  # fmt: skip
    return out
