"""Writes a trainer's checkpoint both ways, or restores a new trainer from one. Each rank of `resume` runs this."""

import hashlib
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch
import torch.distributed as dist

from benchmarks.parts import memory
from benchmarks.parts.ranks import job_of_this_rank, report
from benchmarks.parts.save_worker import fresh_engine, save_ours, trained_engine
from grpo.checkpoint import saving, state_files, trainer_state
from grpo.lora import adapter
from grpo.model import deepspeed_start

CLIENT_STATES = {"global_step": 1}


def save_both(engine: Any, folders: dict[str, Path]) -> None:
    """Save as OpenRLHF 0.9.3's save_ckpt does, and as ours does."""
    engine.save_checkpoint(str(folders["stock"]), tag="global_step1", client_state=CLIENT_STATES, save_latest=True)
    save_ours(engine, folders["ours"])


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


def fingerprint(engine: Any) -> dict[str, Any]:
    """Return what must be the same after a resume on this rank: digests of tensors, and plain values."""
    optimizer = engine.optimizer
    flats = optimizer.fp32_partitioned_groups_flat
    moments = [optimizer.optimizer.state[flat] for flat in flats]
    parameters: list[Any] = adapter.adapter_parameters(engine.module)[1]
    return {
        "adapter": _digest(parameter.ds_tensor for parameter in parameters),
        "master": _digest(flats),
        **{kind: _digest(state[kind] for state in moments if kind in state) for kind in trainer_state.KINDS[1:]},
        "optimizer_step": [int(state.get("step", 0)) for state in moments],
        "learning_rates": [group["lr"] for group in optimizer.param_groups],
        "schedule": [engine.lr_scheduler.last_epoch, *engine.lr_scheduler.get_last_lr()],
        "global_steps": engine.global_steps,
    }


def _digest(tensors: Any) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def measure(load: Any, engine: Any, folder: Path) -> dict[str, Any]:
    """Return seconds, bytes of memory above the initial value, and bytes read: by calls, and as mapped pages."""
    files: list[Any] = []  # alive until their pages are counted

    def remembered(file: Path, real: Any = state_files.read) -> Any:
        files.append(real(file))
        return files[-1]

    dist.barrier()
    with mock.patch.object(state_files, "read", remembered):
        peak, read, begin = memory.Peak(), memory.read_bytes(), time.perf_counter()
        states = load(engine, folder)
        seconds, growth, read = time.perf_counter() - begin, peak.growth(), memory.read_bytes() - read
    if states["global_step"] != CLIENT_STATES["global_step"]:
        raise RuntimeError(f"the client states came back as {states}")
    return {"seconds": seconds, "peak_bytes": growth, "read_bytes": read + memory.mapped_bytes(folder)}


def main() -> None:
    job = job_of_this_rank()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo")
    folders = {name: Path(job["scratch"], name) for name in ("stock", "ours")}
    if job["way"] == "save":
        engine = trained_engine(job["model"], job["lora_rank"])
        save_both(engine, folders)
        parameters = sum(p.ds_numel for p in engine.module.parameters() if p.requires_grad)
        report(state=fingerprint(engine), adapter_parameters=parameters)
    else:
        engine = fresh_engine(job["model"], job["lora_rank"])
        fresh = fingerprint(engine)
        measured = measure({"stock": load_stock, "ours": load_ours}[job["way"]], engine, folders[job["way"]])
        report(fresh=fresh, state=fingerprint(engine), **measured)
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
