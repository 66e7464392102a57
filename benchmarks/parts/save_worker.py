"""Saves a trainer the stock way and ours, and measures both. Each rank of `save` and of `resume` runs this."""

import hashlib
import os
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from benchmarks.parts import memory
from benchmarks.parts.ranks import read_job, report
from benchmarks.parts.zero3 import make_offload_config
from grpo.checkpoint import saving, trainer_state
from grpo.lora import adapter
from grpo.model import deepspeed_start, loading

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def fresh_engine(model_folder: str, rank: int, **zero: Any):
    """Return DeepSpeed's engine around a PeftModel: ZeRO-3, everything offloaded, bf16, a decaying learning rate.

    Args:
        zero: other values of DeepSpeed's `zero_optimization`.
    """
    config = make_offload_config(offload_optimizer={"device": "cpu"}, **zero)
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS)
    model = get_peft_model(loading.load_gpt_oss(model_folder, "eager", config), lora, autocast_adapter_dtype=False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


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


def save_stock(engine, folder: Path) -> None:
    """Save as OpenRLHF 0.9.3 does in save_ckpt and save_model."""
    engine.save_checkpoint(str(folder), tag="global_step1", client_state={"global_step": 1}, save_latest=True)
    state = engine._consolidated_16bit_state_dict()
    if dist.get_rank() == 0:
        torch.save(get_peft_model_state_dict(engine.module, state), folder / "adapter_model.bin")
    dist.barrier()


def save_ours(engine, folder: Path) -> None:
    args = Namespace(ckpt_path=folder, max_ckpt_num=2, metrics_dir=folder, run_dir=folder)
    saving.save_step(engine, args, {"global_step": 1})


def measure(save: Callable, engine, folder: Path) -> dict:
    """Return seconds, bytes of memory above the initial value, and file bytes by folder name."""
    dist.barrier()
    peak, begin = memory.Peak(), time.perf_counter()
    save(engine, folder)
    seconds, growth = time.perf_counter() - begin, peak.growth()
    written: dict[str, int] = {}
    for file in folder.rglob("*"):
        if file.is_file():
            written[file.parent.name] = written.get(file.parent.name, 0) + file.stat().st_size
    return {"seconds": seconds, "peak_bytes": growth, "written": written}


def main() -> None:
    job = read_job()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo")
    engine = fresh_engine(job["model"], job["lora_rank"])
    ids = torch.arange(4)[None]
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    parameters = sum(p.ds_numel for p in engine.module.parameters() if p.requires_grad)
    folders = {name: Path(job["scratch"], name) for name in ("ours", "stock")}
    if dist.get_rank() == 0:
        for folder in folders.values():
            folder.mkdir()
    measured = {name: measure({"ours": save_ours, "stock": save_stock}[name], engine, f) for name, f in folders.items()}
    report(adapter_parameters=parameters, state=fingerprint(engine), **measured)
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
