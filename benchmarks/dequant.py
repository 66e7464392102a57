"""MXFP4 experts to bf16: transformers' convert_moe_packed_tensors and ours, on gpt-oss-120b's expert shapes.

Both produce the same bits from the same bytes; this is checked before the timing. `stock` and `ours` return a new
tensor. `into_written_memory` is ours with an `out` that was written to before, which is comparable with a copy. On a
GPU both are the kernel with which the actor unpacks its experts. Scales are drawn from 2**-17 to 2**-2.
"""

import argparse
import functools

import torch

from benchmarks.harness import Result, Timing, time_in_turn
from benchmarks.machine import Copy
from grpo.model import mxfp4

ON_ANY_DEVICE = True
LAYERS = 36
EXPERTS = 128
# Output features, and groups of 32 input features, of an expert's two tensors.
SHAPES = {"gate_up_proj": (5760, 90), "down_proj": (2880, 90)}
SIZES = {"experts": 2, "repeat": 7, "shrink": 1}


def run(options: argparse.Namespace, copy: Copy) -> Result:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed = [
        _draw_packed(options.experts, rows // options.shrink, max(1, groups // options.shrink), copy.device)
        for rows, groups in SHAPES.values()
    ]

    def ours() -> list[torch.Tensor]:
        return [mxfp4.unpack_weights(*pair) for pair in packed]

    results = ours()
    for pair, result in zip(packed, results, strict=True):
        if not torch.equal(convert_moe_packed_tensors(*pair).view(torch.int16), result.contiguous().view(torch.int16)):
            raise RuntimeError("dequantize and transformers differ: run pytest tests/grpo/model/test_mxfp4.py")

    def ours_into_written_memory() -> None:
        if copy.device.type == "cuda":  # PyTorch reuses what the last round freed
            ours()
            return
        for pair, result in zip(packed, results, strict=True):
            mxfp4.dequantize(*pair, out=result)

    timings = time_in_turn(
        {
            "stock": lambda: [convert_moe_packed_tensors(*pair) for pair in packed],
            "ours": ours,
            "into_written_memory": ours_into_written_memory,
            "copy": functools.partial(copy.measure, 1),
        },
        options.repeat,
        copy.device,
    )
    read = sum(blocks.nbytes + scales.nbytes for blocks, scales in packed)
    written = sum(result.nbytes for result in results)
    return _result(options, timings, read, written, copy)


def _draw_packed(experts: int, rows: int, groups: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return blocks uint8 `[experts, rows, groups, 16]` and scales uint8 `[experts, rows, groups]`."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (experts, rows, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(110, 126, (experts, rows, groups), dtype=torch.uint8, generator=generator)
    return blocks.to(device), scales.to(device)


def _result(options: argparse.Namespace, timings: dict[str, Timing], read: int, written: int, copy: Copy) -> Result:
    rate = {name: written / timing.seconds / 1e9 for name, timing in timings.items()}
    traffic = (read + written) / timings["into_written_memory"].seconds / 1e9
    shrunk = f" divided by {options.shrink}" if options.shrink > 1 else ""
    return Result(
        what=f"bf16 written by dequantizing {options.experts} experts of gpt-oss-120b{shrunk} on {copy.device}",
        unit="GB/s",
        stock=rate["stock"],
        ours=rate["ours"],
        higher_is_better=True,
        details={
            "path": _path(copy.device),
            "into_written_memory_gb_per_s": rate["into_written_memory"],
            "into_written_memory_read_and_written_gb_per_s": traffic,
            "share_of_copy_bandwidth": traffic / copy.best,
            "read_mb": read / 1e6,
            "written_mb": written / 1e6,
            "cores_stock": timings["stock"].cores,
            "cores_ours": timings["ours"].cores,
            "cores_into_written_memory": timings["into_written_memory"].cores,
        },
        extrapolation=_extrapolate(rate),
    )


def _path(device: torch.device) -> str:
    if device.type == "cuda":
        return "Triton kernel"
    return "compiled kernel" if mxfp4.uses_kernel(torch.bfloat16, device) else "PyTorch"


def _extrapolate(rate: dict[str, float]) -> tuple[str, ...]:
    values = LAYERS * EXPERTS * sum(rows * groups * mxfp4.GROUP for rows, groups in SHAPES.values())
    total = 2 * values / 1e9
    stock, ours, written = (total / rate[name] for name in ("stock", "ours", "into_written_memory"))
    return (
        f"gpt-oss-120b: {total:.1f} GB of bf16 experts, {stock:,.0f} s stock, {ours:,.0f} s ours, "
        f"{written:,.0f} s into written memory",
        f"assumes {LAYERS} layers of {EXPERTS} experts at the rate measured, in one process on this machine, "
        "and packed tensors that are in memory already",
    )
