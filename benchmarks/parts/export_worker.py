"""Merges an adapter the stock way or ours, and measures it. The benchmark `export` runs each in its own process."""

import time
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from benchmarks.parts import memory
from benchmarks.parts.ranks import read_job, report
from scripts.export_model import export_model


def merge_stock(base: Path, adapter: Path, target: Path) -> None:
    """Merge as transformers and PEFT document: load the whole model in bf16, merge in place, write."""
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    # transformers 5 would otherwise want to pack the experts again, which it cannot; transformers 4 ignores it.
    merged.save_pretrained(target, save_original_format=False)


def main() -> None:
    job = read_job()
    peak, begin = memory.Peak(), time.perf_counter()
    base, adapter, target = (Path(job[name]) for name in ("base", "adapter", "target"))
    if job["ours"]:
        export_model(base, adapter, target, experts="bf16")
    else:
        merge_stock(base, adapter, target)
    report(seconds=time.perf_counter() - begin, peak_bytes=peak.growth())


if __name__ == "__main__":
    main()
