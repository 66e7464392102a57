"""Saving a trainer under ZeRO-3: OpenRLHF's checkpoint and model, and ours, the adapter and its optimizer.

Attention and adapter have the sizes of gpt-oss-120b, but there are few layers and experts. The stock way is DeepSpeed's
save_checkpoint, plus the whole model gathered on rank 0, which writes the adapter.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import zero3
from benchmarks.measure import Peak, compare
from benchmarks.random_model import shrink, write_model
from benchmarks.ranks import run_ranks


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Save both ways after a training step."""
    with tempfile.TemporaryDirectory() as scratch:
        write_model(Path(scratch, "model"), shrink(layers=options.layers, experts=2, intermediate=32))
        job = {"scratch": scratch, "lora_rank": options.lora_rank}
        ranks = run_ranks("benchmarks.save:save_rank", options.ranks, job)
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


def save_rank(job: dict[str, Any]) -> dict[str, Any]:
    """On each rank: return what saving after a step takes both ways: seconds, memory, and bytes by folder name."""
    scratch = Path(job["scratch"])
    engine = zero3.build(scratch / "model", job["lora_rank"], "cpu")
    zero3.train(engine)
    found: dict[str, Any] = {"parameters": sum(p.ds_numel for p in engine.module.parameters() if p.requires_grad)}
    for name, save in (("ours", zero3.save), ("stock", _save_stock)):
        if dist.get_rank() == 0:
            (scratch / name).mkdir()
        dist.barrier()
        peak, begin = Peak(), time.perf_counter()
        save(engine, scratch / name)
        seconds, written = time.perf_counter() - begin, Counter[str]()
        for file in (scratch / name).rglob("*"):
            written[file.parent.name] += file.stat().st_size if file.is_file() else 0
        found[name] = {"seconds": seconds, "peak_bytes": peak.growth(), "written": written}
    return found


def _save_stock(engine: Any, folder: Path) -> None:
    """Save as OpenRLHF 0.9.3 does in save_ckpt and save_model."""
    from peft import get_peft_model_state_dict

    engine.save_checkpoint(str(folder), tag="global_step1", client_state={"global_step": 1}, save_latest=True)
    state = engine._consolidated_16bit_state_dict()
    if dist.get_rank() == 0:
        torch.save(get_peft_model_state_dict(engine.module, state), folder / "adapter_model.bin")
    dist.barrier()
