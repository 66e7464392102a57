"""Restores a new trainer from what `save_worker` saved, the stock way or ours. Each rank of `resume` runs this."""

import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch.distributed as dist

from benchmarks.parts import memory
from benchmarks.parts.ranks import read_job, report
from benchmarks.parts.save_worker import fingerprint, fresh_engine
from grpo.checkpoint import saving, state_files
from grpo.model import deepspeed_start


def load_stock(engine: Any, folder: Path) -> dict[str, Any]:
    """Load as OpenRLHF 0.9.3's load_ckpt does, with its defaults."""
    path, states = engine.load_checkpoint(
        str(folder),
        None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
    )
    if path is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint in {folder}")
    return states


def load_ours(engine: Any, folder: Path) -> dict[str, Any]:
    return saving.load_step(engine, Namespace(resume_from=folder / "step_1"))


def measure(load: Any, engine: Any, folder: Path) -> dict[str, Any]:
    """Return seconds, bytes of memory above the initial value, and bytes read: by calls, and as mapped pages."""
    files: list[Any] = []  # alive until their pages are counted

    def read_and_keep(file: Path, real: Any = state_files.read) -> Any:
        files.append(real(file))
        return files[-1]

    dist.barrier()
    with mock.patch.object(state_files, "read", read_and_keep):
        peak, read, begin = memory.Peak(), memory.read_bytes(), time.perf_counter()
        states = load(engine, folder)
        seconds, growth, read = time.perf_counter() - begin, peak.growth(), memory.read_bytes() - read
    if states["global_step"] != 1:
        raise RuntimeError(f"the client states came back as {states}")
    return {"seconds": seconds, "peak_bytes": growth, "read_bytes": read + memory.count_mapped_bytes(folder)}


def main() -> None:
    job = read_job()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo")
    engine = fresh_engine(job["model"], job["lora_rank"])
    fresh = fingerprint(engine)
    load = {"stock": load_stock, "ours": load_ours}[job["way"]]
    measured = measure(load, engine, Path(job["scratch"], job["way"]))
    report(fresh=fresh, state=fingerprint(engine), **measured)
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
