"""MXFP4 experts to bf16: transformers' convert_moe_packed_tensors and ours, on gpt-oss-120b's expert shapes.

Both produce the same bits from the same bytes; this is checked before the timing. On a GPU ours is the kernel with
which the actor unpacks its experts.
"""

import argparse
from typing import Any

import torch

from benchmarks.measure import compare, time_in_turn
from grpo.model import mxfp4

_SHAPES = ((5760, 90), (2880, 90))  # output features, and groups of 32 input features, of an expert's two tensors


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Compare both on some experts."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    device, generator = torch.device(options.device), torch.Generator().manual_seed(0)
    packed = []
    for rows, groups in _SHAPES:
        shape = (options.experts, rows, groups)
        blocks = torch.randint(256, (*shape, mxfp4.GROUP // 2), dtype=torch.uint8, generator=generator)
        scales = torch.randint(110, 126, shape, dtype=torch.uint8, generator=generator)  # 2**-17 to 2**-2
        packed.append((blocks.to(device), scales.to(device)))
    results = [mxfp4.unpack_weights(*pair) for pair in packed]
    for pair, result in zip(packed, results, strict=True):
        if not torch.equal(convert_moe_packed_tensors(*pair).view(torch.int16), result.contiguous().view(torch.int16)):
            raise RuntimeError("ours and transformers differ: run pytest tests/grpo/model/test_mxfp4.py")
    ways = {
        "stock": lambda: [convert_moe_packed_tensors(*pair) for pair in packed],
        "ours": lambda: [mxfp4.unpack_weights(*pair) for pair in packed],
        "copy": lambda: [result.clone() for result in results],
    }
    written = sum(result.nbytes for result in results) / 1e9
    rates = {name: written / seconds for name, seconds in time_in_turn(ways, options.repeat, device).items()}
    what = f"bf16 written by unpacking {options.experts} experts of gpt-oss-120b on {device}"
    details = {"written_mb": 1e3 * written, "copy_gb_per_s": rates["copy"]}
    return compare(what, "GB/s", rates["stock"], rates["ours"], details, higher_is_better=True)
