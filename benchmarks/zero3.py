"""The check of the trainer: ZeRO-3 with everything offloaded, a save, and a resume in new processes.

The resumed trainer, whose parameters are on the GPU, must hold the same bits: adapter, fp32 weights, moments, schedule
and random states, those of the GPU included. What it computes next may differ from the first trainer by rounding.
With several ranks, both trainers gather packed and bf16 parameters, which must have the values of the files.
"""

import hashlib
import random
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from peft import LoraConfig, get_peft_model

from benchmarks.checks import Passed
from benchmarks.random_model import shrink, write_model
from benchmarks.ranks import run_ranks
from grpo.checkpoint import saving, trainer_state
from grpo.lora import adapter
from grpo.model import loading, model_files, zero
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.model.model_reader import CheckpointReader
from grpo.stack.problem import UserError

TOKENS, STEPS = 256, 2
_RANK = 16
_ROUNDING = 0.01  # of a loss


def check(gpus: int, experts: int = 32, intermediate: int = 2880) -> Passed:
    """Train two steps, save, and train on; then resume in new processes, and train as far."""
    ranks = gpus or 2
    with tempfile.TemporaryDirectory() as scratch:
        write_model(Path(scratch, "model"), shrink(layers=2, experts=experts, intermediate=intermediate))
        jobs: list[dict[str, Any]] = [{"scratch": scratch, "resumes": resumes} for resumes in (False, True)]
        first, again = (run_ranks("benchmarks.zero3:train_rank", ranks, job, own_gpu=gpus > 0) for job in jobs)
    compare(first, again)
    losses, resumed = ([loss for report in reports for loss in report["losses"]] for reports in (first, again))
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses, resumed, strict=True))
    if not apart < _ROUNDING:
        raise UserError(f"after the resume, losses differ by {apart:.1%}; {_ROUNDING:.0%} are rounding")
    counts = first[0]["gathered"] if ranks > 1 else {}  # DeepSpeed's gather returns at once if there is one rank
    said = " and ".join(f"{count:,} of {dtype}" for dtype, count in counts.items()) or "nothing"
    line = f"{ranks} ranks gathered {said}; states and draws equal after a resume, losses within {apart:.2%}"
    return Passed(line, {"ranks": ranks, "gathered": counts, "losses_apart": apart})


def compare(first: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> None:
    """Raise UserError with the first rank and name that differ."""
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in one["saved"].items():
            if value != other["saved"][name]:
                raise UserError(f"rank {rank}: {name} differs after a resume: {value} and {other['saved'][name]}")


def train_rank(job: dict[str, Any]) -> dict[str, Any]:
    """On each rank: train two steps and save, or resume; return the state, and the losses of two more steps."""
    scratch = Path(job["scratch"])
    engine = build(scratch / "model", _RANK, "none" if job["resumes"] else "cpu")
    gathered = compare_gathered(engine.module, scratch / "model")
    if job["resumes"]:
        saving.load_step(engine, Namespace(resume_from=scratch / "step_1"))
    else:
        for seed in (random.seed, numpy.random.seed, torch.manual_seed, get_accelerator().manual_seed):
            seed(dist.get_rank())
        for _ in range(STEPS):
            train(engine)
        save(engine, scratch)
    saved = _fingerprint(engine) | {"draws": _draw()}
    return {"saved": saved, "losses": [train(engine) for _ in range(STEPS)], "gathered": gathered}


def build(folder: Path, rank: int, offload: str) -> Any:
    """Return DeepSpeed's engine around a PeftModel: ZeRO-3 in bf16, the optimizer offloaded, a decaying rate."""
    zero.shorten_start()
    deepspeed.init_distributed(get_accelerator().communication_backend_name())
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


def train(engine: Any) -> float:
    """Make an optimizer step on tokens that the random generators choose; return the loss."""
    ids = torch.randint(2, 1000, (1, TOKENS)).to(get_accelerator().current_device_name())
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return float(loss)


def save(engine: Any, folder: Path) -> None:
    """Save the adapter and its optimizer, as a run does."""
    args = Namespace(ckpt_path=folder, max_ckpt_num=2, metrics_dir=folder, run_dir=folder)
    saving.save_step(engine, args, {"global_step": 1})


def compare_gathered(model: torch.nn.Module, folder: Path) -> dict[str, int]:
    """Gather the frozen parameters of a PeftModel; return how many of each dtype have the values of the files.

    Raises:
        UserError: if one has other values.
    """
    right, reader = Counter[str](), CheckpointReader(model_files.read(folder))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
            expected = torch.empty(zero.whole_shape(parameter), dtype=parameter.dtype)
            reader.fill(name, expected.shape, 0, expected.view(-1))
            with deepspeed.zero.GatheredParameters([parameter]):
                if not torch.equal(parameter.detach().cpu(), expected):
                    raise UserError(f"{name} has other values after a gather than in the model's files")
            right[str(expected.dtype).removeprefix("torch.")] += 1
    return dict(right)


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
        "schedule": [engine.lr_scheduler.last_epoch, *(group["lr"] for group in optimizer.param_groups)],
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
