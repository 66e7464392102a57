"""A rank of the rung "ZeRO-3 and resume": trains, saves, and trains on; or resumes, and trains as far.

It compares each frozen parameter that a module gets from DeepSpeed's gathers with the model's files.
"""

import os
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from benchmarks.parts.ranks import read_job, report
from benchmarks.parts.resume_worker import load_ours
from benchmarks.parts.save_worker import fingerprint, fresh_engine, save_ours
from grpo.model import deepspeed_start, model_files
from grpo.model.model_reader import CheckpointReader
from grpo.model.zero import whole_shape

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


class Gathered:
    """What the modules of a model compute with, compared with the model's files at each forward pass.

    Args:
        model: a PeftModel. DeepSpeed has already installed its hooks, so ours see what it has gathered.
        folder: of the checkpoint.

    Attributes:
        right: how many parameters of each dtype had the values of the files.
        wrong: the names of the others.
    """

    def __init__(self, model: torch.nn.Module, folder: Path) -> None:
        self.right: Counter[str] = Counter()
        self.wrong: set[str] = set()
        reader = CheckpointReader(model_files.read(folder))
        for prefix, module in model.named_modules():
            for leaf, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    name = f"{prefix}.{leaf}".removeprefix("base_model.model.").replace(".base_layer.", ".")
                    expected = torch.empty(whole_shape(parameter), dtype=parameter.dtype)
                    reader.fill(name, expected.shape, 0, expected.view(-1))
                    module.register_forward_pre_hook(partial(self._compare, name, parameter, expected))

    def _compare(
        self, name: str, parameter: torch.Tensor, expected: torch.Tensor, _module: torch.nn.Module, _inputs: Any
    ) -> None:
        if torch.equal(parameter.detach().cpu(), expected):
            self.right[str(expected.dtype).removeprefix("torch.")] += 1
        else:
            self.wrong.add(name)


def main() -> None:
    job = read_job()
    deepspeed_start.shorten()
    accelerator = get_accelerator()
    deepspeed.init_distributed("gloo" if accelerator.device_name() == "cpu" else "nccl")
    folder = Path(job["scratch"], "checkpoint")
    engine, seconds = fresh_engine(job["model"], LORA_RANK, offload_param={"device": job["offload"]}), 0.0
    gathered = Gathered(engine.module, Path(job["model"]))
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
    report(
        saved=saved, draws=drawn, losses=losses, step_s=seconds, peak_gb=peak / 1e9,
        right=gathered.right, wrong=sorted(gathered.wrong),
    )  # fmt: skip
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
