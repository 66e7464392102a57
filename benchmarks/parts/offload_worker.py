"""An actor with everything offloaded, by OpenRLHF's own classes, stock or patched. Each rank of `offload` runs this."""

import functools
import gc
import os
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from benchmarks.parts import memory, stock
from benchmarks.parts.ranks import read_job, report
from grpo.model import cpu_matmul, deepspeed_start
from grpo.model.architecture import ATTENTION_PROJECTIONS


def build_engine(job: dict[str, Any], actor_module: Any, strategy_module: Any) -> Any:
    """Follow the steps of OpenRLHF's PolicyModelActor.init_model_from_pretrained, up to DeepSpeed's engine."""
    # Stock has no `offload`: on a CPU its parameters are on the host anyway. The optimizer is not under comparison.
    strategy_module.DeepSpeedCPUAdam = functools.partial(torch.optim.AdamW, fused=True)
    args = SimpleNamespace(param_dtype="bf16", adam_offload=True, offload=True)
    strategy = strategy_module.DeepspeedStrategy(
        max_norm=1.0, micro_train_batch_size=1, train_batch_size=dist.get_world_size(), zero_stage=3, args=args
    )
    ds_config = strategy.get_ds_train_config(is_actor=True) | {"zero_force_ds_cpu_optimizer": False}
    strategy.get_ds_train_config = lambda is_actor: ds_config
    actor = actor_module.Actor(
        job["model"],
        attn_implementation="eager",
        lora_rank=job["lora_rank"],
        lora_alpha=2 * job["lora_rank"],
        target_modules=list(ATTENTION_PROJECTIONS),
        ds_config=ds_config,
    )
    optimizer = strategy.create_optimizer(actor.model, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
    actor.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    return strategy.prepare((actor.model, optimizer, None), is_rlhf=True)[0]


def main() -> None:
    job = read_job()
    deepspeed_start.shorten()
    deepspeed.init_distributed("gloo")
    cpu_matmul.install()  # for both: it is not under comparison
    modules = [stock.load(job["package"], name) for name in ("models.actor", "utils.deepspeed.deepspeed")]
    begin, peak = memory.read_resident(), memory.Peak()
    engine = build_engine(job, *modules)
    dist.barrier()
    gc.collect()
    ready, ready_peak = memory.read_resident(), begin + peak.growth()
    ids = torch.arange(job["tokens"])[None] % 1000 + 2
    engine.train()
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    dist.barrier()
    gc.collect()
    report(
        begin=begin, ready=ready, ready_peak=ready_peak, after_step=memory.read_resident(), peak=begin + peak.growth(),
        step=engine.global_steps,
    )  # fmt: skip
    os._exit(0)  # a thread of the C++ libraries sometimes aborts the interpreter's own exit


if __name__ == "__main__":
    main()
