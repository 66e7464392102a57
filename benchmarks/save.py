"""Saving a trainer under ZeRO-3: OpenRLHF's checkpoint and model, and ours, the adapter and its optimizer.

Attention and adapter have the sizes of gpt-oss-120b, but there are few layers and experts. The stock way is DeepSpeed's
save_checkpoint, plus the whole model gathered on rank 0, which writes the adapter.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import BF16_BYTES, FULL, write_random_model
from benchmarks.parts.ranks import run_ranks

GB, MB = 1e9, 1e6
ADAPTER_120B = 47_775_744  # parameters at rank 64 on q, k, v and o
SIZES = {"ranks": 2, "layers": 8, "lora_rank": 64}


def run(options: argparse.Namespace, _: Copy) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-save-") as scratch:
        folder = Path(scratch, "model")
        write_random_model(folder, layers=options.layers, experts=2, intermediate=32)
        job = {"model": str(folder), "scratch": scratch, "lora_rank": options.lora_rank}
        ranks = run_ranks("save_worker", options.ranks, job)
    adapter = 2 * ranks[0]["adapter_parameters"]
    stock, ours = ranks[0]["stock"], ranks[0]["ours"]
    written = {"stock": sum(stock["written"].values()), "ours": sum(ours["written"].values())}
    return Result(
        what=f"written by {options.ranks} ranks for one checkpoint of an adapter of {adapter / MB:.1f} MB in bf16 on "
        f"{options.layers} layers with the attention of gpt-oss-120b",
        unit="MB",
        stock=written["stock"] / MB,
        ours=written["ours"] / MB,
        details={
            "adapter_files_over_adapter": ours["written"]["adapter"] / adapter,
            "trainer_bytes_a_parameter": ours["written"]["trainer"] / (adapter / 2),
            "ours_peak_over_adapter": max(rank["ours"]["peak_bytes"] for rank in ranks) / adapter,
            "stock_peak_over_adapter": max(rank["stock"]["peak_bytes"] for rank in ranks) / adapter,
            "ours_s": max(rank["ours"]["seconds"] for rank in ranks),
            "stock_s": max(rank["stock"]["seconds"] for rank in ranks),
        },
        extrapolation=(
            f"gpt-oss-120b: {ADAPTER_120B * 14 / MB:,.0f} MB ours ({ADAPTER_120B * 2 / MB:,.0f} MB of it the adapter); "
            f"stock {(BF16_BYTES + ADAPTER_120B * 14) / GB:,.0f} GB, and {BF16_BYTES / GB:,.0f} GB of memory on rank 0",
            f"assumes {FULL.layers} layers, rank 64, and that stock writes every weight once, as it does here",
        ),
    )
