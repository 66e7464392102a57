"""Random values of a sensible scale for the tensors of a gpt-oss: activations stay finite, tokens stay different."""

from collections.abc import Iterator
from typing import Any

import torch

from grpo.model import mxfp4

# Scales of MXFP4 from 2**-9 to 2**-6. With them a weight has a standard deviation of about 0.026.
_SCALES = (118, 122)


def fill_(name: str, values: torch.Tensor, inputs: int, generator: torch.Generator | None = None) -> None:
    """Fill a tensor, or a part of it, in place.

    Args:
        name: of the tensor in a checkpoint, in transformers, or in vLLM.
        values: contiguous; in uint8 scales of MXFP4, or blocks, whose last dimension is a multiple of 8.
        inputs: the last dimension of the whole tensor. A weight keeps the size of what it is applied to.
        generator: on the tensor's device; by default that of the device.
    """
    if values.dtype == torch.uint8 and name.endswith(("_scales", "_scale")):
        values.random_(*_SCALES, generator=generator)
    elif values.dtype == torch.uint8:
        values.view(torch.int64).random_(-(2**63), None, generator=generator)  # 8 bytes at a time
    elif "norm" in name:
        values.fill_(1)
    else:
        # Embeddings are as large as what a layer adds to them. Otherwise all tokens of a sequence grow alike.
        values.normal_(0, 1 if "embed" in name else inputs**-0.5, generator=generator)


def expert_values(count: int, hidden: int, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a layer's experts by name, packed and in bf16, on the generator's device."""
    where: dict[str, Any] = {"generator": generator, "device": generator.device}
    for name, outputs in (("gate_up_proj", 2 * hidden), ("down_proj", hidden)):
        shape = (count, outputs, hidden // mxfp4.GROUP)
        blocks = torch.randint(256, (*shape, mxfp4.GROUP // 2), dtype=torch.uint8, **where)
        scales = torch.randint(*_SCALES, shape, dtype=torch.uint8, **where)
        yield f"{name}_blocks", blocks
        yield f"{name}_scales", scales
        yield name, mxfp4.dequantize(blocks, scales)
        yield f"{name}_bias", torch.randn(count, outputs, **where).bfloat16()
