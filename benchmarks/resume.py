"""Restoring a trainer under ZeRO-3: OpenRLHF's load_ckpt of a whole checkpoint, and ours, of trained parameters only.

Attention and adapter have the sizes of gpt-oss-120b, but there are few layers and experts. Each way has its own ranks,
which have already loaded the base model, as both need it. Both must restore the saved adapter, master weights, moments,
learning rate and counters, which is checked. Bytes read are those of calls and of touched pages of mapped files.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import BF16_BYTES, write_random_model
from benchmarks.parts.ranks import run_ranks
from benchmarks.save import ADAPTER_120B
from grpo.model import model_files

GB, MB = 1e9, 1e6
WAYS = ("stock", "ours")
SIZES = {"ranks": 2, "layers": 8, "lora_rank": 64}


def run(options: argparse.Namespace, _: Copy) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as scratch:
        model = Path(scratch, "model")
        write_random_model(model, layers=options.layers, experts=2, intermediate=32)
        job = {"model": str(model), "scratch": scratch, "lora_rank": options.lora_rank}
        saved = run_ranks("save_worker", options.ranks, job)
        reports = {name: run_ranks("resume_worker", options.ranks, {**job, "way": name}) for name in WAYS}
        bf16 = model_files.read_whole(model).bf16_bytes
    for name in WAYS:
        check([rank["state"] for rank in saved], reports[name], name)
    read, peak = (
        {name: sum(rank[what] for rank in reports[name]) for name in WAYS} for what in ("read_bytes", "peak_bytes")
    )
    trained = saved[0]["adapter_parameters"]
    # Besides the weights, each way reads fp32 master weights and two moments of what is trained.
    times = (read["stock"] - 12 * trained) / (bf16 + 2 * trained)
    return Result(
        what=f"read by {options.ranks} ranks to bring back a trainer of {options.layers} layers with the attention of "
        f"gpt-oss-120b and an adapter of rank {options.lora_rank}",
        unit="MB",
        stock=read["stock"] / MB,
        ours=read["ours"] / MB,
        details={
            "ours_read_bytes_a_parameter": read["ours"] / trained,
            "stock_weights_read_times": times,
            **{f"{name}_peak_mb": peak[name] / MB for name in WAYS},
            "stock_peak_over_bf16_model": peak["stock"] / bf16,
            **{f"{name}_s": max(rank["seconds"] for rank in reports[name]) for name in WAYS},
        },
        extrapolation=(
            f"gpt-oss-120b: {ADAPTER_120B * 12 / GB:.2f} GB read ours; stock "
            f"{(times * (BF16_BYTES + ADAPTER_120B * 2) + ADAPTER_120B * 12) / GB:,.0f} GB, and "
            f"{peak['stock'] / bf16 * BF16_BYTES / GB:,.0f} GB of memory beside the model meanwhile",
            "assumes rank 64, and that stock reads weights as often, and holds as much of them, as it does here; the "
            "base model itself is read by both before, see the benchmark `load`",
        ),
    )


def check(saved: list[dict[str, Any]], ranks: list[dict[str, Any]], name: str) -> None:
    """Compare each rank's state with the saved one.

    Raises:
        RuntimeError: if a part differs, or a new trainer has the same anyway, which would prove nothing.
    """
    for number, (expected, rank) in enumerate(zip(saved, ranks, strict=True)):
        for part, value in expected.items():
            if rank["state"][part] != value:
                raise RuntimeError(f"{name} brought back another {part} on rank {number}: run pytest tests/grpo")
            if rank["fresh"][part] == value:
                raise RuntimeError(f"{part} of a new trainer is the saved one on rank {number}: nothing is shown")
