"""Train an adapter, save, resume.

trainer_ranks.py MODEL OUT STEPS RESUME_FROM PERSISTENCE_THRESHOLD LORA_RANK SHARD [START]
"""

import contextlib
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from grpo.checkpoint import adapter_files, saving
from grpo.lora import adapter, expert_form
from grpo.model import cpu_matmul, expert_lora, loading, zero
from grpo.model.architecture import NO_SHARD
from grpo.train import reference

ACCUMULATION = 6  # samples an optimizer step
EXPERT_RANK = 3


def make_engine(path: str, persistent: int, lora_rank: int, shard: str, start: str):
    """A DeepSpeed engine as a rank makes it: ZeRO-3, Adam on the host, bf16, a schedule."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATION // dist.get_world_size(),
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "none" if shard == NO_SHARD else "cpu"},
            "offload_optimizer": {"device": "cpu"},
            "stage3_param_persistence_threshold": persistent,
        },
    }
    args: Any = SimpleNamespace(actor_shard=shard, offload=False, stage3_param_persistence_threshold=None)
    config = zero.tune(config, args)
    model = loading.load_gpt_oss(path, "eager", config, sharded=shard != NO_SHARD)
    expert_lora.attach(model, EXPERT_RANK)
    lora = LoraConfig(
        r=lora_rank, lora_alpha=8, target_modules=expert_lora.list_target_modules(["q_proj", "o_proj", "experts"])
    )
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    if start:
        saving.load_adapter(model, Path(start))
        reference.keep_start(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


def list_parameters(trained) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in trained.module.named_parameters() if "lora_" in name}


def gather_state(trained) -> dict[str, torch.Tensor]:
    """Master weights, moments and bf16 weights of every adapter tensor, gathered by DeepSpeed."""
    state = {}
    for name, parameter in zip(*adapter.adapter_parameters(trained.module), strict=True):
        state[f"{name} master"] = safe_get_full_fp32_param(parameter).clone()
        for kind in ("exp_avg", "exp_avg_sq"):
            state[f"{name} {kind}"] = safe_get_full_optimizer_state(parameter, kind).clone()
        with deepspeed.zero.GatheredParameters([parameter]):
            state[f"{name} bf16"] = parameter.detach().clone()
    return state


def gather_start_tensors(trained) -> dict[str, torch.Tensor]:
    """The frozen copy of the adapter that the run started from, by PEFT's name."""
    frozen = {
        expert_form.to_file_name(n.replace(".start.", ".")): p
        for n, p in trained.module.named_parameters()
        if ".start." in n
    }
    assert not any(parameter.requires_grad for parameter in frozen.values())
    with deepspeed.zero.GatheredParameters(list(frozen.values())):
        return {name: expert_form.to_file(name, parameter.detach()).clone() for name, parameter in frozen.items()}


@torch.no_grad()
def run_passes(trained) -> list[torch.Tensor]:
    """The logits of the policy, the reference and the base."""
    contexts = (contextlib.nullcontext(), reference.as_reference(trained), reference.without_adapter(trained))
    logits = []
    for context in contexts:
        with context:
            logits.append(trained(input_ids=torch.arange(2, 17)[None]).logits)
    return logits


def main(
    path: str, out: str, steps: str, resume_from: str, persistent: str, lora_rank: str, shard: str, start: str = ""
) -> None:
    cpu_matmul.install(torch.float32)
    torch.manual_seed(0)  # the adapter's first weights
    trained = make_engine(path, int(persistent), int(lora_rank), shard, start)
    of_zero3 = {name for name, parameter in trained.module.named_parameters() if hasattr(parameter, "ds_id")}
    assert (of_zero3 == set(list_parameters(trained))) is (shard == NO_SHARD), "ZeRO-3 holds only the adapter"
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(dist.get_rank())
    args = SimpleNamespace(ckpt_path=out, max_ckpt_num=9, metrics_dir=out, run_dir=out, resume_from=resume_from)
    losses, first = [], 0
    before = run_passes(trained) if start else []
    if start:
        assert torch.equal(before[0], before[1]) and not torch.equal(before[1], before[2])
        kept, saved = gather_start_tensors(trained), load_file(Path(start) / adapter_files.WEIGHTS)
        assert kept.keys() == saved.keys() and all(torch.equal(kept[name], saved[name]) for name in kept)
    if resume_from:
        first = saving.load_step(trained, args)["global_step"]
        loaded = gather_state(trained)
        if dist.get_rank() == 0:
            torch.save(loaded, Path(out) / "loaded.pt")
    else:
        saving.save_step(trained, args, {"global_step": 0})
    for step in range(first, int(steps)):
        for _ in range(trained.gradient_accumulation_steps()):
            draws = [random.randrange(97), numpy.random.randint(97), torch.randint(97, ()).item()]
            ids = torch.tensor([draws * 5])
            loss = trained(input_ids=ids, labels=ids).loss
            trained.backward(loss)
            trained.step()
        norm = float(trained.get_global_grad_norm())
        losses.append([loss.item(), trained.get_lr()[0], trained.global_steps, norm, *draws])
        saving.save_step(trained, args, {"global_step": step + 1})
        now = gather_state(trained)
        if dist.get_rank() == 0:
            torch.save(now, Path(out) / f"whole_{step + 1}.pt")
    if start:
        policy, *others = run_passes(trained)
        assert not torch.equal(policy, before[0]) and all(map(torch.equal, others, before[1:]))
    (Path(out) / f"losses_{dist.get_rank()}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    zero.shorten_start()
    deepspeed.init_distributed("gloo")
    main(*sys.argv[1:])
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit, after all is done
