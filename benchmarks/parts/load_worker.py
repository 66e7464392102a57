"""Loads a checkpoint the stock way or ours, and measures it. Each rank of the benchmark `load` runs this."""

import functools
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from benchmarks.parts import memory, stock
from benchmarks.parts.ranks import read_job, report
from benchmarks.parts.zero3 import make_offload_config
from grpo.model import deepspeed_start, zero


def convert(job: dict[str, Any]) -> torch.nn.Module:
    """Write a copy in bf16 with transformers. Stock needs it, since it does not load MXFP4."""
    whole = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    # transformers 5 would otherwise want to pack the experts again, which it cannot; transformers 4 ignores it.
    whole.save_pretrained(job["target"], save_original_format=False)
    return whole


def sum_partitions(model: torch.nn.Module) -> dict[str, int]:
    """Return the sum of the bits of this rank's partition of each parameter, which is in bf16."""
    partitioner, sums = zero.ZeroPartitioner(make_offload_config()), {}
    for name, parameter in dict[str, Any](model.named_parameters()).items():
        start, stop = partitioner.local_range(zero.whole_shape(parameter))
        sums[name] = int(parameter.ds_tensor[: stop - start].view(torch.int16).sum(dtype=torch.int64))
    return sums


def make_loader(job: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    """Return what loads the partition of this rank, as OpenRLHF's Actor does."""
    deepspeed.init_distributed("gloo")
    actor = stock.load(job["package"], "models.actor").Actor
    # With `make_offload_config`, gathers are exact for both ways: with gloo, DeepSpeed's own may bring other numbers.
    return lambda: (
        actor(job["model"], attn_implementation="eager", ds_config=make_offload_config(), **job["settings"]).model
    )


def main() -> None:
    job = read_job()
    deepspeed_start.shorten()
    way = functools.partial(convert, job) if "target" in job else make_loader(job)
    peak, read, begin = memory.Peak(), memory.read_bytes(), time.perf_counter()
    model = way()
    seconds, growth, read = time.perf_counter() - begin, peak.growth(), memory.read_bytes() - read
    gc.collect()
    report(
        seconds=seconds, peak_bytes=growth, held_bytes=memory.read_resident() - peak.before, read_bytes=read,
        sums={} if "target" in job else sum_partitions(model),
    )  # fmt: skip
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
