"""MXFP4 <-> floating point, in the layout of the gpt-oss checkpoints.

A group is 32 consecutive input values of one output row: 16 bytes (low nibble first, E2M1 codes) and one scale byte s
meaning 2**(s - 127). The files hold `[..., out, groups, 16]`. The parameter of transformers' `GptOssExperts` is the
transpose, `[..., in, out]` with `in = 32 * groups`.

Source: OCP Microscaling Formats (MX) specification 1.0, sections 5.3.3, 5.4.1 and 6.3. `dequantize` is bit-identical to
`transformers.integrations.mxfp4.convert_moe_packed_tensors`, except that NaN payloads may differ.
"""

import functools

import torch

from grpo.model import mxfp4_kernel

GROUP = 32
SCALE_BIAS = 127
MAX_SCALE = 254  # 255 is NaN in the specification
_E2M1_MAX_EXPONENT = 2
# Shift an E2M1 code's sign, exponent and mantissa bits to their bf16 positions. The result is the code's value times
# 2**-126, subnormals included: the exponent biases are 1 and 127.
_E2M1_AS_BF16 = 2.0**126
_BF16_BITS = 0x81C0 - (1 << 16)  # as a signed 16-bit number: the sign, and the positions of an E2M1 code's other bits
# Values decoded at a time on a CPU, so that the temporaries fit in a core's cache.
_CHUNK = 1 << 17


def dequantize(
    blocks: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Unpack experts to the layout of the GptOss parameter.

    Args:
        blocks: uint8 `[..., out, groups, 16]`.
        scales: uint8 `[..., out, groups]`.
        dtype: dtype of the result.
        out: destination, contiguous; reusing memory avoids the page faults of a new allocation.

    Returns:
        `[..., in, out]` of `dtype`, contiguous, on the device of `blocks`. As in transformers, overflow gives infinity,
        and a zero with scale 255 gives NaN.

    On a CPU, the compiled kernel produces bf16 if the setup has built it, with as many threads as PyTorch uses.
    PyTorch does everything else, expert by expert. Besides input and result it needs less memory than one expert's
    result.
    """
    *experts, out_features, groups, _ = blocks.shape
    shape = (*experts, groups * GROUP, out_features)
    result = torch.empty(shape, dtype=dtype, device=blocks.device) if out is None else out
    packed = blocks.reshape(-1, out_features, groups, GROUP // 2), scales.reshape(-1, out_features, groups)
    target = result.view(-1, groups * GROUP, out_features)
    if uses_kernel(result.dtype, blocks.device):
        _run_kernel(*packed, target)
    else:
        _run_torch(*packed, target)
    return result


def unpack_weights(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return `[..., in, out]` of `dtype` like `dequantize`, in the order of memory that the device writes fastest.

    Args:
        blocks, scales: as for `dequantize`, or a part of them along `out` or `groups`.
    """
    if blocks.device.type == "cuda" and dtype == torch.bfloat16:
        from grpo.model import mxfp4_triton  # here, since Triton is not on every machine

        return mxfp4_triton.unpack(blocks, scales).transpose(-1, -2)
    return dequantize(blocks, scales, dtype)


def uses_kernel(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether `dequantize` runs the compiled kernel for this kind of result."""
    avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return dtype == torch.bfloat16 and device.type == "cpu" and avx2 and mxfp4_kernel.load() is not None


def _run_kernel(blocks: torch.Tensor, scales: torch.Tensor, target: torch.Tensor) -> None:
    """Fill `target` `[experts, in, out]` from `blocks` `[experts, out, groups, 16]` and its scales."""
    kernel = mxfp4_kernel.load()
    assert kernel is not None
    # Copy non-contiguous views one expert at a time.
    whole = blocks.is_contiguous() and scales.is_contiguous()
    for part in [slice(None)] if whole else [slice(i, i + 1) for i in range(len(blocks))]:
        part_blocks, part_scales = blocks[part].contiguous(), scales[part].contiguous()
        kernel.mxfp4_dequantize(
            part_blocks.data_ptr(),
            part_scales.data_ptr(),
            _value_table().data_ptr(),
            target[part].data_ptr(),
            *part_scales.shape,
            torch.get_num_threads(),
        )


@functools.cache
def _value_table() -> torch.Tensor:
    """bf16 `[256, 16]`: the value of each E2M1 code at each scale, as PyTorch computes it."""
    codes = torch.arange(16, dtype=torch.uint8).expand(256, 1, 16).contiguous()
    values = torch.empty(1, GROUP, 256, dtype=torch.bfloat16)
    _run_torch(codes.unsqueeze(0), torch.arange(256, dtype=torch.uint8).view(1, 256, 1), values)
    return values[0, ::2].T.contiguous()


def _run_torch(blocks: torch.Tensor, scales: torch.Tensor, target: torch.Tensor) -> None:
    """Like `_run_kernel`, on any device and for any dtype of `target`. Never synchronises with the device."""
    # In the result's dtype, as in transformers; bf16 and float32 hold every one of these powers of two.
    factors = _scale_factors(target.device).to(target.dtype)
    for expert in range(len(blocks)):
        _dequantize_expert(blocks[expert], scales[expert], factors, target[expert])


def _dequantize_expert(blocks: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, target: torch.Tensor) -> None:
    """Fill `target` `[in, out]` from `blocks` `[out, groups, 16]` and `scales` `[out, groups]`."""
    out_features, groups, _ = blocks.shape
    # Pack four codes into a 16-bit word: transposing words moves a quarter of the data. `view` requires an even storage
    # offset.
    even = blocks.is_contiguous() and blocks.storage_offset() % 2 == 0
    rows = (blocks if even else blocks.clone(memory_format=torch.contiguous_format)).view(torch.int16).flatten(1)
    column_factors = factors[scales.T.int()].unsqueeze(1)
    lines = target.view(groups, GROUP // 4, 4, out_features)
    step = max(1, _CHUNK // (out_features * GROUP // 4)) if target.device.type == "cpu" else groups
    for start in range(0, groups, step):
        part = slice(start, start + step)
        words = rows[:, start * GROUP // 4 : (start + step) * GROUP // 4].T.contiguous()
        words = words.view(-1, GROUP // 4, out_features)
        for nibble in range(4):
            # Move the sign to the top, then shift it down with the rest to bf16's lowest exponent bits.
            codes = (words << (12 - 4 * nibble)).bitwise_right_shift_(6).bitwise_and_(_BF16_BITS)
            values = codes.view(torch.bfloat16).mul_(_E2M1_AS_BF16)
            torch.mul(values, column_factors[part], out=lines[part, :, nibble])


def _scale_factors(device: torch.device) -> torch.Tensor:
    """float32 `[256]`: 2**(s - 127); infinite for 255, beyond the float32 range."""
    exponents = torch.arange(256, device=device) - SCALE_BIAS
    # PyTorch 2.11 allocates a result of the first argument's shape.
    return torch.ldexp(torch.ones(256, device=device), exponents)


def quantize(weight: torch.Tensor, smallest: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a GptOss expert parameter in the format of the checkpoint files.

    The scale of a group is the power of two of its largest magnitude, divided by that of E2M1's largest value. Values
    round to the nearest E2M1 value, ties to the even code, and saturate at 6 (MX specification 1.0, section 6.3).
    `dequantize(*quantize(dequantize(*quantize(w))))` equals `dequantize(*quantize(w))`.

    Args:
        weight: floating point `[..., in, out]`, `in` a multiple of 32.
        smallest: scales that are taken where they are larger. Those of a weight before a small change keep what did not
            change: a largest magnitude just below a power of two would otherwise get the scale below, and saturate.

    Returns:
        blocks uint8 `[..., out, in / 32, 16]` and scales uint8 `[..., out, in / 32]`.

    Raises:
        ValueError: if a value is not finite.
    """
    if not torch.isfinite(weight).all():
        raise ValueError("MXFP4 cannot hold NaN or infinite weights")
    values = weight.float().transpose(-1, -2).unflatten(-1, (-1, GROUP))
    # frexp's mantissa is in [0.5, 1), so its exponent is one above floor(log2); exact, unlike log2.
    exponents = torch.frexp(values.abs().amax(-1)).exponent - 1 - _E2M1_MAX_EXPONENT
    scales = (exponents + SCALE_BIAS).clamp(0, MAX_SCALE)
    if smallest is not None:
        scales = torch.maximum(scales, smallest)
    codes = _nearest_code(torch.ldexp(values, (SCALE_BIAS - scales).unsqueeze(-1)))
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.contiguous(), scales.to(torch.uint8).contiguous()


def _nearest_code(values: torch.Tensor) -> torch.Tensor:
    """Return the E2M1 codes (uint8) of scaled values: nearest, ties to the even code, saturating."""
    size = values.abs()
    # Neighbors are 0.5 apart below 2, 1 apart below 4, then 2; `round` takes halves to the even code.
    above_2 = torch.where(size < 4, size.round() + 2, (size / 2).round() + 4)
    codes = torch.where(size < 2, (size * 2).round(), above_2).clamp(max=7)
    return codes.to(torch.uint8) | torch.signbit(values).to(torch.uint8) << 3
