"""Saving a trainer under ZeRO-3: OpenRLHF's checkpoint and model, and ours, the adapter and its optimizer.

Attention and adapter have the sizes of gpt-oss-120b, but there are few layers and experts. The stock way is DeepSpeed's
save_checkpoint, plus the whole model gathered on rank 0, which writes the adapter.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import compare
from benchmarks.random_model import shrink, write_model
from benchmarks.ranks import run_ranks


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Save both ways after a training step."""
    with tempfile.TemporaryDirectory() as scratch:
        write_model(Path(scratch, "model"), shrink(layers=options.layers, experts=2, intermediate=32))
        job = {"scratch": scratch, "task": "save", "lora_rank": options.lora_rank, "offload": "cpu"}
        ranks = run_ranks("zero3_worker", options.ranks, job)
    adapter = 2 * ranks[0]["parameters"]
    stock, ours = (sum(ranks[0][name]["written"].values()) / 1e6 for name in ("stock", "ours"))
    details = {
        "trainer_bytes_a_parameter": ranks[0]["ours"]["written"]["trainer"] / (adapter / 2),
        "adapter_files_over_adapter": ranks[0]["ours"]["written"]["adapter"] / adapter,
    }
    for name in ("stock", "ours"):
        details[f"{name}_peak_over_adapter"] = max(rank[name]["peak_bytes"] for rank in ranks) / adapter
        details[f"{name}_s"] = max(rank[name]["seconds"] for rank in ranks)
    what = (
        f"written by {options.ranks} ranks for one checkpoint of an adapter of {adapter / 1e6:.1f} MB in bf16 on "
        f"{options.layers} layers with the attention of gpt-oss-120b"
    )
    return compare(what, "MB", stock, ours, details)
