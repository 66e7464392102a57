"""Loads a checkpoint the stock way or ours, and measures it. Each rank of the benchmark `load` runs this."""

import os
import time
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from grpo.model import deepspeed_start, loading, zero
from scripts.bench.parts import memory
from scripts.bench.parts.ranks import job_of_this_rank, report
from scripts.bench.parts.zero3 import offloaded


def checksum(part: torch.Tensor) -> int:
    """Return the sum of the bits of a bf16 tensor."""
    return int(part.view(torch.int16).sum(dtype=torch.int64))


def main() -> None:
    job = job_of_this_rank()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo")
    partitioner = zero.ZeroPartitioner(offloaded())
    peak, read, begin = memory.Peak(), memory.read_bytes(), time.perf_counter()
    model: Any
    if job["ours"]:
        model = loading.load_gpt_oss(job["model"], "eager", offloaded(), packed=False)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            job["model"], dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
        )
    seconds, growth, read = time.perf_counter() - begin, peak.growth(), memory.read_bytes() - read

    sums = {}
    for name, parameter in dict[str, Any](model.named_parameters()).items():
        start, stop = partitioner.local_range(zero.whole_shape(parameter))
        mine = parameter.ds_tensor[: stop - start] if job["ours"] else parameter.data.view(-1)[start:stop]
        sums[name] = checksum(mine)
    report(seconds=seconds, peak_bytes=growth, read_bytes=read, sums=sums)
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
