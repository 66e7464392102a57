"""MXFP4 <-> floating point, in the layout of the gpt-oss checkpoints.

A group is 32 consecutive input values of one output row: 16 bytes (low nibble first, E2M1 codes) and one
scale byte s meaning 2**(s - 127). The files hold `[..., out, groups, 16]`; the parameter of transformers'
`GptOssExperts` is the transpose, `[..., in, out]` with `in = 32 * groups`.

Source: OCP Microscaling Formats (MX) specification 1.0, sections 5.3.3, 5.4.1 and 6.3. `dequantize` gives the
bits of `transformers.integrations.mxfp4.convert_moe_packed_tensors` (where that is NaN, some NaN).
"""

import torch

GROUP = 32
SCALE_BIAS = 127
MAX_SCALE = 254  # 255 is NaN in the specification
_E2M1_MAX_EXPONENT = 2
# An E2M1 code whose sign, exponent and mantissa bits stand where bf16 has its own is, subnormals included, the
# bf16 number of that value times 2**-126: the exponent biases are 1 and 127.
_E2M1_AS_BF16 = 2.0**126
# Bytes decoded at a time, so that the temporaries stay in the cache of a core.
_CHUNK = 1 << 17


def dequantize(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Unpack experts to the layout of the GptOss parameter.

    Args:
        blocks: uint8 `[..., out, groups, 16]`.
        scales: uint8 `[..., out, groups]`.
        dtype: of the result.

    Returns:
        `[..., in, out]` of `dtype`, contiguous, on the device of `blocks`. Too large values are infinite, and
        a zero with scale 255 is NaN, as in transformers.

    Raises:
        ValueError: if the shapes or dtypes do not belong together.

    Works expert by expert: beyond the input and the result it needs about a third of one expert's result.
    """
    _check_packed(blocks, scales)
    *experts, out_features, groups, _ = blocks.shape
    result = torch.empty(*experts, groups * GROUP, out_features, dtype=dtype, device=blocks.device)
    # In the result's dtype, as in transformers; bf16 and float32 hold every one of these powers of two.
    factors = _scale_factors(blocks.device).to(dtype)
    flat_blocks = blocks.reshape(-1, out_features, groups, GROUP // 2)
    flat_scales = scales.reshape(-1, out_features, groups)
    for expert, target in enumerate(result.view(-1, groups, GROUP // 2, 2, out_features)):
        _dequantize_expert(flat_blocks[expert], flat_scales[expert], factors, target)
    return result


def _dequantize_expert(blocks: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, target: torch.Tensor) -> None:
    """Fill `target` `[groups, 16, 2, out]` from `blocks` `[out, groups, 16]` and `scales` `[out, groups]`."""
    out_features, groups, _ = blocks.shape
    # Transposing the bytes moves a quarter of what transposing the values would.
    columns = blocks.permute(1, 2, 0).contiguous()
    column_factors = factors[scales.T.int()].unsqueeze(1)
    step = max(1, _CHUNK // (out_features * GROUP // 2))
    for start in range(0, groups, step):
        part = slice(start, start + step)
        codes = columns[part].to(torch.int16)
        low = (codes & 0x07) << 6 | (codes & 0x08) << 12
        high = (codes & 0x70) << 2 | (codes & 0x80) << 8
        for nibble, bits in enumerate((low, high)):
            values = bits.view(torch.bfloat16).mul_(_E2M1_AS_BF16)
            torch.mul(values, column_factors[part], out=target[part, :, nibble])


def _check_packed(blocks: torch.Tensor, scales: torch.Tensor) -> None:
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"MXFP4 blocks and scales are uint8, got {blocks.dtype} and {scales.dtype}")
    if blocks.dim() < 3 or blocks.shape[-1] != GROUP // 2 or blocks.shape[:-1] != scales.shape:
        raise ValueError(
            "MXFP4 blocks are [..., out, groups, 16] and scales [..., out, groups], "
            f"got {tuple(blocks.shape)} and {tuple(scales.shape)}"
        )


def _scale_factors(device: torch.device) -> torch.Tensor:
    """float32 `[256]`: 2**(s - 127); infinite for 255, where float32 ends."""
    exponents = torch.arange(256, device=device) - SCALE_BIAS
    return torch.ldexp(torch.ones((), device=device), exponents)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a GptOss expert parameter as the checkpoint files hold it.

    The scale of a group is the power of two of its largest magnitude, less that of E2M1; values round to the
    nearest E2M1 value, ties to the even code, and saturate at 6 (MX specification 1.0, section 6.3).
    `dequantize(*quantize(dequantize(*quantize(w))))` equals `dequantize(*quantize(w))`.

    Args:
        weight: floating point `[..., in, out]`, `in` a multiple of 32.

    Returns:
        blocks uint8 `[..., out, in / 32, 16]` and scales uint8 `[..., out, in / 32]`.

    Raises:
        ValueError: if `in` is no multiple of 32 or a value is not finite.
    """
    if weight.dim() < 2 or weight.shape[-2] % GROUP:
        raise ValueError(f"MXFP4 needs [..., in, out] with in a multiple of {GROUP}, got {tuple(weight.shape)}")
    if not torch.isfinite(weight).all():
        raise ValueError("MXFP4 cannot hold NaN or infinite weights")
    values = weight.float().transpose(-1, -2).unflatten(-1, (-1, GROUP))
    # frexp's mantissa is in [0.5, 1), so its exponent is one above floor(log2); exact, unlike log2.
    exponents = torch.frexp(values.abs().amax(-1)).exponent - 1 - _E2M1_MAX_EXPONENT
    scales = (exponents + SCALE_BIAS).clamp(0, MAX_SCALE)
    codes = _nearest_code(torch.ldexp(values, (SCALE_BIAS - scales).unsqueeze(-1)))
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.contiguous(), scales.to(torch.uint8).contiguous()


def _nearest_code(values: torch.Tensor) -> torch.Tensor:
    """E2M1 codes (uint8) of scaled values: nearest, ties to the even code, saturating."""
    size = values.abs()
    # Neighbours are 0.5 apart below 2, 1 apart below 4, then 2; `round` takes halves to the even code.
    above_2 = torch.where(size < 4, size.round() + 2, (size / 2).round() + 4)
    codes = torch.where(size < 2, (size * 2).round(), above_2).clamp(max=7)
    return codes.to(torch.uint8) | torch.signbit(values).to(torch.uint8) << 3
