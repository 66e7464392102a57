"""Our loss under ZeRO-3: loss_ranks.py MODEL OUT AGGREGATION MICRO_BATCH SHARD [BASE].

Writes gradients, and log-probs with the adapter off. BASE is the description of the base of an engine.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from peft import LoraConfig, get_peft_model

from grpo.lora import adapter
from grpo.model import cpu_matmul, loading, zero
from grpo.model.architecture import OF_ENGINE, ZERO3
from grpo.model.shared_base import MappedBase
from grpo.train import reference
from grpo.train.loss import PolicyLoss, Ranks

LENGTHS = (3, 17, 5, 9)  # of four samples
PROMPT = 2


def make_samples() -> list[SimpleNamespace]:
    """Sequences of a prompt and a response each, with advantages."""
    generator = torch.Generator().manual_seed(7)
    samples = []
    for length in LENGTHS:
        ids = torch.randint(2, 97, (1, PROMPT + length), generator=generator)
        mask = torch.arange(1, PROMPT + length)[None] >= PROMPT
        advantages = torch.randn(1, 1, generator=generator)
        samples.append(SimpleNamespace(ids=ids, action_mask=mask, advantages=advantages, index=[len(samples)]))
    return samples


def join_samples(parts: list[SimpleNamespace]) -> SimpleNamespace:
    """Samples as one micro-batch, padded on the left, as OpenRLHF pads them."""

    def pad_rows(rows: list[torch.Tensor]) -> torch.Tensor:
        length = max(row.shape[1] for row in rows)
        return torch.cat([torch.nn.functional.pad(row, (length - row.shape[1], 0)) for row in rows])

    return SimpleNamespace(
        ids=pad_rows([part.ids for part in parts]),
        attention_mask=pad_rows([torch.ones_like(part.ids) for part in parts]),
        action_mask=pad_rows([part.action_mask for part in parts]),
        advantages=torch.cat([part.advantages for part in parts]),
        index=[number for part in parts for number in part.index],
    )


def add_adapter(model):
    """The model with an adapter of known values."""
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"])
    return get_peft_model(model, lora, autocast_adapter_dtype=False)


def fill(parameters) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in parameters:
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)


def compute_log_probs(model, one: SimpleNamespace) -> torch.Tensor:
    positions = (one.attention_mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(one.ids, attention_mask=one.attention_mask, position_ids=positions).logits[:, :-1].float()
    return logits.log_softmax(-1).gather(-1, one.ids[:, 1:, None])[..., 0]


def make_arguments(aggregation: str) -> SimpleNamespace:
    return SimpleNamespace(
        loss_aggregation=aggregation, generate_max_len=20, eps_clip_low_high=(0.2, 0.2), dual_clip=None,
        policy_loss_type="ppo", enable_vllm_is_correction=False, advantage_clip=None,
    )  # fmt: skip


def make_engine(path: str, micro_batch: int, shard: str, base: str):
    """A DeepSpeed engine as OpenRLHF makes it, whose parameters are all partitioned, or whose base is whole."""
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": len(LENGTHS) // dist.get_world_size() // micro_batch,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu" if shard == ZERO3 else "none"},
            "offload_optimizer": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0,
        },
    }
    args: Any = SimpleNamespace(actor_shard=shard, offload=False, stage3_param_persistence_threshold=None)
    config = zero.tune(config, args)
    mapped = MappedBase(json.loads(Path(base).read_text())) if shard == OF_ENGINE else None
    model = add_adapter(loading.load_gpt_oss(path, "eager", config, sharded=shard == ZERO3, base=mapped))
    parameters = adapter.adapter_parameters(model)[1]
    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        if shard != ZERO3 or dist.get_rank() == 0:  # not partitioned before DeepSpeed's engine is made
            fill(parameters)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def compute_base(trained, one: SimpleNamespace) -> torch.Tensor:
    with torch.no_grad(), reference.without_adapter(trained):
        return compute_log_probs(trained, one)


def main(path: str, out: str, aggregation: str, micro_batch: str, shard: str, description: str = "") -> None:
    cpu_matmul.install(torch.float32)
    size = int(micro_batch)
    trained, ranks, rank = make_engine(path, size, shard, description), dist.get_world_size(), dist.get_rank()
    loss = PolicyLoss(make_arguments(aggregation))
    everything, gradients, off = [join_samples([sample]) for sample in make_samples()], {}, []
    losses = []
    mine = make_samples()[rank::ranks]
    batches = [join_samples(mine[start : start + size]) for start in range(0, len(mine), size)]
    for one in loss.iterate_batches(batches, Ranks(ranks, trained.gradient_accumulation_steps())):
        off.append(compute_base(trained, everything[0]))  # between the passes of training, before and after its step
        current = compute_log_probs(trained, one)
        one_loss = loss(current, current.detach(), one.advantages.expand(current.shape), one.action_mask)
        losses.append(one_loss.item())
        trained.backward(one_loss)
        if trained.is_gradient_accumulation_boundary():
            for name, parameter in zip(*adapter.adapter_parameters(trained.module), strict=True):
                gradients[name] = safe_get_full_grad(parameter).clone()
        trained.step()
    off.append(compute_base(trained, everything[0]))
    with torch.no_grad():
        on = compute_log_probs(trained, everything[0])
    if shard == OF_ENGINE:
        frozen = [each for name, each in trained.module.named_buffers() if "inv_freq" not in name]
        assert len({each.untyped_storage().data_ptr() for each in frozen}) == 1, "DeepSpeed has copied the base"
    if rank == 0:
        torch.save({"gradients": gradients, "losses": losses, "off": off, "on": on}, Path(out) / "results.pt")


if __name__ == "__main__":
    zero.shorten_start()
    deepspeed.init_distributed("gloo")
    main(*sys.argv[1:])
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit, after all is done
