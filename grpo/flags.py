"""The command-line flags that we add to OpenRLHF's trainer, and the refusals of combinations that cannot work."""

import argparse
from collections.abc import Iterator

# Schedules of transformers 4.57 that take what OpenRLHF gives every schedule (`min_lr`) and go on without a metric.
SCHEDULES = (
    *("constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    group = parser.add_argument_group("gptoss-grpo")
    group.add_argument("--run_dir", default="./run", help="metrics.jsonl, eval.jsonl and samples/ are written here")
    group.add_argument("--metrics_dir", default=None, help="another place for metrics.jsonl and eval.jsonl")
    group.add_argument("--max_steps", type=int, default=None, help="stop after this many global steps")
    group.add_argument("--resume_from", default=None, help="continue from this checkpoint, a folder step_N")
    group.add_argument("--eval_at_start", action="store_true", help="evaluate once before the first step")
    group.add_argument("--log_samples", type=int, default=None, help="samples of a step to write, beside the extremes")
    group.add_argument("--use_trackio", action="store_true", help="log to Trackio")
    group.add_argument("--offload", action="store_true", help="keep the actor's ZeRO-3 parameters in host memory")
    group.add_argument(
        "--engine_model", default=None, help="checkpoint that the vLLM engines load (default: --pretrain)"
    )
    group.add_argument(
        "--stage3_param_persistence_threshold",
        type=int,
        default=None,
        help="parameters smaller than this many elements stay whole on every rank (default: DeepSpeed's)",
    )


def validate(args: argparse.Namespace) -> None:
    """Refuse what cannot work, before Ray starts.

    Raises:
        SystemExit: with one line for each problem and its remedy.
    """
    found = list(problems(args))
    if found:
        raise SystemExit("\n".join(f"train_ppo_ray: {problem}" for problem in found))


def problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield what cannot work in these arguments, each with its remedy."""
    yield from _attention(args)
    yield from _adapter(args)
    yield from _zero3(args)
    yield from _copies(args)
    yield from _loop(args)


def _attention(args: argparse.Namespace) -> Iterator[str]:
    if args.packing_samples or args.use_dynamic_batch or args.ring_attn_size > 1:
        yield (
            "--packing_samples, --use_dynamic_batch and --ring_attn_size > 1 switch to flash attention, which drops "
            "gpt-oss's attention sinks: leave them out"
        )
    if args.attn_implementation != "eager":
        # A kernel from the hub may apply them, but transformers drops them without a word where it does not.
        yield (
            f"--attn_implementation {args.attn_implementation} is not known to apply gpt-oss's attention sinks: "
            "use eager"
        )


def _adapter(args: argparse.Namespace) -> Iterator[str]:
    if args.lora_rank <= 0:
        yield "full-parameter training cannot be synchronised to the engines here: set --lora_rank (64 for the 120b)"
    elif not set(args.target_modules) <= set(ATTENTION_PROJECTIONS):
        yield (
            f"--target_modules {' '.join(args.target_modules)}: the engines apply adapters of the attention alone, "
            f"choose from {', '.join(ATTENTION_PROJECTIONS)}"
        )
    if args.load_in_4bit:
        yield "--load_in_4bit requantises an MXFP4 model to NF4: leave it out"
    if args.vllm_enable_sleep:
        yield "--vllm_enable_sleep discards the adapter in the engines: leave it out"


def _zero3(args: argparse.Namespace) -> Iterator[str]:
    if args.zero_stage != 3:
        yield f"--zero_stage {args.zero_stage} is not supported: loading and saving are made for --zero_stage 3"
    elif args.gradient_checkpointing and not args.gradient_checkpointing_use_reentrant:
        yield (
            "gradient checkpointing with LoRA under ZeRO-3 raises a CheckpointError unless it is reentrant: "
            "add --gradient_checkpointing_use_reentrant"
        )
    for name in ("zpg", "ds_tensor_parallel_size"):
        if getattr(args, name) > 1:
            yield f"--{name} {getattr(args, name)}: loading and sync give each rank one share of all: leave it out"
    for name in ("deepcompile", "use_liger_kernel"):
        if getattr(args, name):
            yield f"--{name} is not supported for gpt-oss as it is loaded here: leave it out"


def _copies(args: argparse.Namespace) -> Iterator[str]:
    if args.enable_ema:
        yield "--enable_ema would load a second copy of the model: leave it out"
    if args.init_kl_coef > 0:
        yield "--init_kl_coef > 0 would load a second copy of the model as reference: use --init_kl_coef 0"
    if args.advantage_estimator == "gae":
        yield "--advantage_estimator gae would load a second copy of the model as critic: use dr_grpo"
    if args.load_checkpoint:
        yield "--load_checkpoint looks for DeepSpeed checkpoints, which hold the whole model: use --resume_from"


def _loop(args: argparse.Namespace) -> Iterator[str]:
    if args.async_train:
        yield "--async_train is not supported: its trainer does not write metrics.jsonl or eval.jsonl"
    if args.max_steps is not None and args.max_steps < 1:
        yield f"--max_steps {args.max_steps} trains nothing: give 1 or more, or leave it out"
    if args.log_samples is not None and args.log_samples < 0:
        yield f"--log_samples {args.log_samples}: give 0 or more, or leave it out to write all"
    if args.actor_learning_rate <= 0:
        yield f"--actor_learning_rate {args.actor_learning_rate:g} does not learn: give more than 0"
    if args.lr_scheduler not in SCHEDULES:
        yield f"--lr_scheduler {args.lr_scheduler} cannot be used here: use one of {', '.join(SCHEDULES)}"
    if args.temperature <= 0:
        yield f"--temperature {args.temperature:g} draws the same sample every time: give more than 0"
    if not 0 < args.vllm_gpu_memory_utilization <= 1:
        yield f"--vllm_gpu_memory_utilization {args.vllm_gpu_memory_utilization:g}: give a share from 0 to 1"
    save, evaluate = args.save_steps, args.eval_steps
    if args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save:
        yield (
            f"--save_steps {save} and --eval_steps {evaluate} rarely meet, so that no checkpoint would be known as the "
            "best: make one a multiple of the other"
        )
