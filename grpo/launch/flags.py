"""The trainer's flags, and the combinations that it refuses."""

import argparse
import os
from collections.abc import Iterator

from grpo.flags import ours
from grpo.launch import loss_flags, rollout_flags
from grpo.model.architecture import EXPERTS_TARGET, NO_SHARD, OF_ENGINE, PACKED, TARGETS, ZERO3
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem
from grpo.train.objectives import LOSSES

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # PyTorch's old and new name of the same


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    ours.add_flags(parser)
    parser._option_string_actions["--policy_loss_type"].choices = tuple(LOSSES)  # OpenRLHF knows two of them


def validate(args: argparse.Namespace) -> None:
    """Refuse invalid arguments before Ray starts.

    Raises:
        SystemExit: with one line for each problem and its remedy.
    """
    refused = [f"train_ppo_ray: {problem.what}: {problem.remedy}" for problem in problems(args)]
    if refused:
        raise SystemExit("\n".join(refused))


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    yield from _adapter(args)
    yield from _sharing(args)
    yield from _zero3(args)
    yield from loss_flags.problems(args)
    yield from _loop(args)
    yield from rollout_flags.problems(args)


def _loop(args: argparse.Namespace) -> Iterator[Problem]:
    if args.pipeline and args.colocate_all_models:
        yield Problem(
            "--pipeline samples and trains at the same time, but --colocate_all_models gives engines and actor the "
            "same GPUs",
            "remove one of them",
        )
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield Problem(
            f"--save_steps {save} and --eval_steps {evaluate} rarely coincide, so the best checkpoint is unknown",
            "make one a multiple of the other",
        )


def _adapter(args: argparse.Namespace) -> Iterator[Problem]:
    if args.lora_rank <= 0:
        yield Problem("only an adapter goes to the engines", "set --lora_rank (64 for the 120b)")
    elif not set(args.target_modules) <= set(TARGETS):
        yield Problem(
            f"--target_modules {' '.join(args.target_modules)}: the engines have no adapters of other parts",
            f"choose from {', '.join(TARGETS)}",
        )
    if args.expert_rank and EXPERTS_TARGET not in args.target_modules:
        yield Problem(f"--expert_rank {args.expert_rank} is for {EXPERTS_TARGET} in --target_modules", "remove it")


def _sharing(args: argparse.Namespace) -> Iterator[Problem]:
    engines = args.vllm_num_engines * args.vllm_tensor_parallel_size
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    if args.colocate_all_models and engines != ranks:
        yield Problem(
            f"--colocate_all_models gives each GPU a part of an engine and a rank of the actor, but the engines have "
            f"{format_count(engines, 'GPU')} and the actor {format_count(ranks, 'GPU')}",
            "make --actor_num_gpus_per_node equal to --vllm_num_engines x --vllm_tensor_parallel_size",
        )
    if args.actor_shard == OF_ENGINE:
        lacking = {
            "--colocate_all_models": args.colocate_all_models,
            "--vllm_tensor_parallel_size 1": args.vllm_tensor_parallel_size == 1,
            f"--experts {PACKED}": args.experts == PACKED,
        }
        for setting in (setting for setting, is_set in lacking.items() if not is_set):
            yield Problem(
                f"--actor_shard engine uses the packed model that an engine holds on the same GPU, and needs {setting}",
                f"set {setting}, or --actor_shard {NO_SHARD}",
            )
        for name in (
            name for name in _ALLOCATOR if "expandable_segments:True" in os.environ.get(name, "").replace(" ", "")
        ):
            yield Problem(
                f"{name} has expandable_segments:True, whose memory the processes of --actor_shard engine cannot share",
                f"unset {name}, or set --actor_shard {NO_SHARD}",
            )
    if args.vllm_enable_sleep and not args.colocate_all_models:
        yield Problem(
            "--vllm_enable_sleep gives an engine's memory to the actor, but they have GPUs of their own",
            "remove it, or set --colocate_all_models",
        )


def _zero3(args: argparse.Namespace) -> Iterator[Problem]:
    if args.zero_stage != 3:
        yield Problem(f"--zero_stage {args.zero_stage} is not supported", "use --zero_stage 3")
    elif args.gradient_checkpointing and not args.gradient_checkpointing_use_reentrant:
        yield Problem(
            "gradient checkpointing with LoRA under ZeRO-3 raises a CheckpointError unless it is reentrant",
            "add --gradient_checkpointing_use_reentrant",
        )
    if args.offload and args.actor_shard != ZERO3:
        yield Problem(
            f"--offload keeps shares of the model in host memory, but --actor_shard {args.actor_shard} has no shares",
            "set --actor_shard zero3, or --no-offload",
        )
