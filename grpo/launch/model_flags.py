"""Flags of the model, the adapter and ZeRO-3 that the trainer refuses."""

import argparse
from collections.abc import Iterator

from grpo.model.architecture import ATTENTION_PROJECTIONS, NO_SHARD
from grpo.stack.counted import counted
from grpo.stack.problem import Problem

ATTENTIONS = ("sinks", "eager")  # ours (grpo.model.attention), and transformers' own


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    yield from _attention(args)
    yield from _adapter(args)
    yield from _sharing(args)
    yield from _zero3(args)
    if args.enable_ema:
        yield Problem("--enable_ema would load a second copy of the model", "remove it")
    if args.advantage_estimator == "gae":
        yield Problem("--advantage_estimator gae would load a second copy of the model as critic", "use dr_grpo")
    if not 0 < args.vllm_gpu_memory_utilization <= 1:
        yield Problem(
            f"--vllm_gpu_memory_utilization is {args.vllm_gpu_memory_utilization:g}", "give a share from 0 to 1"
        )


def _attention(args: argparse.Namespace) -> Iterator[Problem]:
    if args.packing_samples or args.use_dynamic_batch or args.ring_attn_size > 1:
        yield Problem(
            "--packing_samples, --use_dynamic_batch and --ring_attn_size > 1 switch to flash attention, which drops "
            "gpt-oss's attention sinks",
            "remove them",
        )
    if args.attn_implementation not in ATTENTIONS:
        # A hub kernel may apply the sinks; if it does not, transformers drops them silently.
        yield Problem(
            f"--attn_implementation {args.attn_implementation} is not known to apply gpt-oss's attention sinks",
            f"use {' or '.join(ATTENTIONS)}",
        )


def _adapter(args: argparse.Namespace) -> Iterator[Problem]:
    if args.lora_rank <= 0:
        yield Problem(
            "full-parameter training is not supported: only an adapter is synchronised to the engines",
            "set --lora_rank (64 for the 120b)",
        )
    elif not set(args.target_modules) <= set(ATTENTION_PROJECTIONS):
        yield Problem(
            f"--target_modules {' '.join(args.target_modules)}: the engines only apply adapters of the attention",
            f"choose from {', '.join(ATTENTION_PROJECTIONS)}",
        )
    if args.lora_dropout:
        yield Problem(
            f"--lora_dropout {args.lora_dropout:g} drops parts of the adapter in the actor alone: its log-probs would "
            "differ from those of the engines",
            "remove it",
        )
    if args.load_in_4bit:
        yield Problem("--load_in_4bit requantises an MXFP4 model to NF4", "remove it")
    if args.deepspeed_enable_sleep:
        yield Problem("--deepspeed_enable_sleep moves what --offload and --adam_offload keep on the host", "remove it")


def _sharing(args: argparse.Namespace) -> Iterator[Problem]:
    engines = args.vllm_num_engines * args.vllm_tensor_parallel_size
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    if args.colocate_all_models and engines != ranks:
        yield Problem(
            f"--colocate_all_models gives each GPU a part of an engine and a rank of the actor, but the engines have "
            f"{counted(engines, 'GPU')} and the actor {counted(ranks, 'GPU')}",
            "make --actor_num_gpus_per_node equal to --vllm_num_engines x --vllm_tensor_parallel_size",
        )
    if args.vllm_enable_sleep and not args.colocate_all_models:
        yield Problem(
            "--vllm_enable_sleep gives an engine's memory to the actor, but they have GPUs of their own",
            "remove it, or add --colocate_all_models",
        )


def _zero3(args: argparse.Namespace) -> Iterator[Problem]:
    if args.zero_stage != 3:
        yield Problem(f"--zero_stage {args.zero_stage} is not supported", "use --zero_stage 3")
    elif args.gradient_checkpointing and not args.gradient_checkpointing_use_reentrant:
        yield Problem(
            "gradient checkpointing with LoRA under ZeRO-3 raises a CheckpointError unless it is reentrant",
            "add --gradient_checkpointing_use_reentrant",
        )
    if args.offload and args.actor_shard == NO_SHARD:
        yield Problem(
            "--offload keeps shares of the model in host memory, but --actor_shard none has no shares",
            "use --actor_shard zero3, or remove --offload",
        )
    for name in ("zpg", "ds_tensor_parallel_size"):
        if getattr(args, name) > 1:
            yield Problem(
                f"--{name} {getattr(args, name)} is not supported: loading and sync assume that each rank holds one "
                "share of every parameter",
                "remove it",
            )
    for name in ("deepcompile", "use_liger_kernel"):
        if getattr(args, name):
            yield Problem(f"--{name} is not supported for gpt-oss", "remove it")
