"""A rank of the rung "ZeRO-3 and resume": trains, saves, and trains on; or resumes, and trains as far."""

import os
import random
import time
from pathlib import Path
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from grpo.model import deepspeed_start
from scripts.bench.parts.ranks import job_of_this_rank, report
from scripts.bench.parts.resume_worker import fingerprint, load_ours
from scripts.bench.parts.save_worker import fresh_engine, save_ours

LORA_RANK, TOKENS, STEPS = 16, 256, 2


def draws() -> list[int]:
    """Return a number from each random generator of this process: of the GPU, of PyTorch, of Python, of NumPy."""
    device = get_accelerator().current_device_name()
    on_device = torch.randint(2**31, (), device=device).item()
    return [int(on_device), int(torch.randint(2**31, ())), random.randrange(2**31), numpy.random.randint(2**31)]


def train(engine: Any) -> float:
    """Make an optimizer step on tokens that the random generators choose; return the loss."""
    device = get_accelerator().current_device_name()
    ids = torch.randint(2, 1000, (1, TOKENS)).to(device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return float(loss)


def main() -> None:
    job = job_of_this_rank()
    deepspeed_start.shorten()
    accelerator = get_accelerator()
    deepspeed.init_distributed("gloo" if accelerator.device_name() == "cpu" else "nccl")
    folder = Path(job["scratch"], "checkpoint")
    engine, seconds = fresh_engine(job["model"], LORA_RANK), 0.0
    if job["resume"]:
        load_ours(engine, folder)
    else:
        for seed in (random.seed, numpy.random.seed, torch.manual_seed, accelerator.manual_seed):
            seed(dist.get_rank())
        for _ in range(STEPS):
            begin = time.perf_counter()
            train(engine)
            accelerator.synchronize()
            seconds = time.perf_counter() - begin
        if dist.get_rank() == 0:
            folder.mkdir()
        dist.barrier()
        save_ours(engine, folder)
    saved, drawn = fingerprint(engine), draws()
    losses = [train(engine) for _ in range(STEPS)]
    peak = accelerator.max_memory_allocated() if accelerator.device_name() != "cpu" else 0
    report(saved=saved, draws=drawn, losses=losses, step_s=seconds, peak_gb=peak / 1e9)
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
