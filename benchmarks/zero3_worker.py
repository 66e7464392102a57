"""A rank of the rung "ZeRO-3 and resume", or of the benchmark `save`.

It compares each frozen parameter that a module gets from DeepSpeed's gathers with the model's files.
"""

import hashlib
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from benchmarks.measure import Peak
from benchmarks.ranks import read_job, report
from grpo.checkpoint import saving, trainer_state
from grpo.lora import adapter
from grpo.model import deepspeed_start, loading, model_files, zero
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.model.model_reader import CheckpointReader

TOKENS, STEPS = 256, 2


def _build(folder: Path, rank: int, offload: str) -> Any:
    """Return DeepSpeed's engine around a PeftModel: ZeRO-3 in bf16, the optimizer offloaded, a decaying rate."""
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": "cpu"}}
    config: Any = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {**stage, "offload_param": {"device": offload}},
    }
    zero.tune(config, None)
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(ATTENTION_PROJECTIONS))
    model: Any = get_peft_model(loading.load_gpt_oss(folder, "eager", config), lora, autocast_adapter_dtype=False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


def _fingerprint(engine: Any) -> dict[str, Any]:
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


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _draw() -> list[int]:
    """Return a number from each random generator of this process: of the GPU, of PyTorch, of Python, of NumPy."""
    on_device = torch.randint(2**31, (), device=get_accelerator().current_device_name()).item()
    return [int(on_device), int(torch.randint(2**31, ())), random.randrange(2**31), numpy.random.randint(2**31)]


def _train(engine: Any) -> float:
    """Make an optimizer step on tokens that the random generators choose; return the loss."""
    ids = torch.randint(2, 1000, (1, TOKENS)).to(get_accelerator().current_device_name())
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return float(loss)


class Gathered:
    """What the modules of a PeftModel compute with, compared with the model's files at each forward pass.

    DeepSpeed has already installed its hooks, so ours see what it has gathered.

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
                    expected = torch.empty(zero.whole_shape(parameter), dtype=parameter.dtype)
                    reader.fill(name, expected.shape, 0, expected.view(-1))
                    module.register_forward_pre_hook(partial(self._compare, name, parameter, expected))

    def _compare(self, name: str, parameter: torch.Tensor, expected: torch.Tensor, *_: Any) -> None:
        if torch.equal(parameter.detach().cpu(), expected):
            self.right[str(expected.dtype).removeprefix("torch.")] += 1
        else:
            self.wrong.add(name)


def _save_ours(engine: Any, folder: Path) -> None:
    """Save the adapter and its optimizer, as a run does."""
    args = Namespace(ckpt_path=folder, max_ckpt_num=2, metrics_dir=folder, run_dir=folder)
    saving.save_step(engine, args, {"global_step": 1})


def _save_stock(engine: Any, folder: Path) -> None:
    """Save as OpenRLHF 0.9.3 does in save_ckpt and save_model."""
    engine.save_checkpoint(str(folder), tag="global_step1", client_state={"global_step": 1}, save_latest=True)
    state = engine._consolidated_16bit_state_dict()
    if dist.get_rank() == 0:
        torch.save(get_peft_model_state_dict(engine.module, state), folder / "adapter_model.bin")
    dist.barrier()


def _compare_saves(engine: Any, scratch: Path) -> None:
    """Report what saving after a step takes, the stock way and ours: seconds, memory, and bytes by folder name."""
    _train(engine)
    found: dict[str, Any] = {"parameters": sum(p.ds_numel for p in engine.module.parameters() if p.requires_grad)}
    for name, save in (("ours", _save_ours), ("stock", _save_stock)):
        if dist.get_rank() == 0:
            (scratch / name).mkdir()
        dist.barrier()
        peak, begin = Peak(), time.perf_counter()
        save(engine, scratch / name)
        seconds, written = time.perf_counter() - begin, Counter[str]()
        for file in (scratch / name).rglob("*"):
            written[file.parent.name] += file.stat().st_size if file.is_file() else 0
        found[name] = {"seconds": seconds, "peak_bytes": peak.growth(), "written": written}
    report(**found)


def main() -> None:
    job, accelerator = read_job(), get_accelerator()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo" if accelerator.device_name() == "cpu" else "nccl")
    scratch, seconds = Path(job["scratch"]), 0.0
    engine = _build(scratch / "model", job["lora_rank"], job["offload"])
    if job["task"] == "save":
        _compare_saves(engine, scratch)
    gathered = Gathered(engine.module, scratch / "model")
    if job["task"] == "resume":
        saving.load_step(engine, Namespace(resume_from=scratch / "step_1"))
    else:
        for seed in (random.seed, numpy.random.seed, torch.manual_seed, accelerator.manual_seed):
            seed(dist.get_rank())
        for _ in range(STEPS):
            begin = time.perf_counter()
            _train(engine)
            accelerator.synchronize()
            seconds = time.perf_counter() - begin
        _save_ours(engine, scratch)
    saved = _fingerprint(engine) | {"draws": _draw()}
    losses = [_train(engine) for _ in range(STEPS)]
    peak = accelerator.max_memory_allocated() if accelerator.device_name() != "cpu" else 0
    report(
        rank=dist.get_rank(), saved=saved, losses=losses, step_s=seconds, peak_gb=peak / 1e9,
        right=gathered.right, wrong=sorted(gathered.wrong),
    )  # fmt: skip


if __name__ == "__main__":
    main()
