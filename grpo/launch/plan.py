"""What a configuration means: batches, steps, tokens, memory, disk."""

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.launch.config import Config
from grpo.launch.data_files import read_records
from grpo.launch.host_memory import actor_bytes, host_memory, is_for_gpus
from grpo.launch.lengths import describe_lengths
from grpo.model import released
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.model.model_files import CheckpointError, Model
from grpo.rollout import greedy
from grpo.settings.table import SETTINGS
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.counted import format_count
from grpo.stack.machine import GB, stand_ins
from grpo.stack.problem import UserError
from grpo.update import objectives
from grpo.update.learning_rate import LearningRate, count_steps, count_updates

# Bytes per LoRA parameter: bf16 weight; fp32 master weight, two Adam moments, fp32 gradient.
WEIGHT_BYTES, OPTIMIZER_BYTES = 2, 16
_SAVED_STATE = 12  # the same without the gradient
# Object store: a few adapters in flight, and rollouts (ids, masks, log-probs, advantages: 32 bytes a token).
_ADAPTERS_IN_STORE, TOKEN_BYTES, _MIN_STORE = 8, 32, 512 * 2**20


@dataclass
class Plan:
    """Numbers that follow from a configuration. Sizes are in bytes; None if the model or the data cannot be read."""

    rollouts_per_step: int
    optimizer_steps_per_step: int
    gradient_accumulation: int
    prompts: int | None = None
    steps_per_episode: int | None = None
    unused_prompts_per_episode: int | None = None
    steps: int | None = None
    scheduled_optimizer_steps: int | None = None
    eval_prompts: int | None = None
    evals: int | None = None
    max_tokens_per_step: int = 0
    model_bf16_bytes: int | None = None
    model_actor_bytes: int | None = None
    model_file_bytes: int | None = None
    lora_parameters: int | None = None
    lora_optimizer_bytes: int | None = None
    host_memory: dict[str, int] = field(default_factory=dict)
    host_bytes: int | None = None
    checkpoint_bytes: int | None = None
    disk_bytes: int | None = None
    object_store_bytes: int = _MIN_STORE
    architecture: Architecture | None = None
    download_bytes: int | None = None
    ray_gpus: int = 0
    ray_cpus: int = 0
    unknown: list[str] = field(default_factory=list)


def make_plan(config: Config) -> Plan:
    """Compute the plan. `unknown` lists what cannot be read; the preflight refuses it."""
    args = config.args
    samples = config.rollouts_per_step
    plan = Plan(
        rollouts_per_step=samples,
        optimizer_steps_per_step=count_updates(args),
        gradient_accumulation=args.train_batch_size // (args.micro_train_batch_size * config.actor_ranks),
        max_tokens_per_step=samples * config.max_model_len,
        ray_gpus=config.gpus,
        # One CPU for each bundle, one for the trainer, and a few for Ray's own processes.
        ray_cpus=config.gpus + 4,
    )
    _add_steps(plan, config)
    try:
        _add_sizes(plan, config, released.find(args.pretrain), released.find(args.engine_model))
    except CheckpointError as error:
        plan.unknown.append(f"memory and disk: {error}")
    return plan


def _add_steps(plan: Plan, config: Config) -> None:
    args = config.args
    try:
        plan.prompts = len(read_records(Path(args.prompt_data or ""), args.input_key, args.label_key))
        if args.eval_dataset:
            plan.eval_prompts = len(read_records(Path(args.eval_dataset), args.input_key, args.label_key))
    except UserError as error:
        plan.unknown.append(f"steps and evals: {error}")
    if plan.prompts is None:
        return
    plan.steps_per_episode, plan.unused_prompts_per_episode = divmod(plan.prompts, args.rollout_batch_size)
    plan.steps = count_steps(args, plan.prompts)
    plan.scheduled_optimizer_steps = plan.steps * plan.optimizer_steps_per_step
    if plan.eval_prompts and args.eval_steps > 0:
        plan.evals = math.ceil(plan.steps / args.eval_steps) + int(args.eval_at_start)  # always the last step


def _add_sizes(plan: Plan, config: Config, model: Model, engine_model: Model) -> None:
    args = config.args
    plan.architecture = Architecture.from_config(model.config)
    plan.lora_parameters = plan.architecture.count_lora_parameters(args)
    plan.model_bf16_bytes, plan.model_file_bytes = model.bf16_bytes, model.file_bytes
    if args.pretrain in released.RELEASED:  # not here: a model in the hub's cache goes by its folder
        plan.download_bytes = sum(plan.architecture.actor_bytes(packed=True).values())
        plan.model_file_bytes = plan.download_bytes
    plan.model_actor_bytes = sum(actor_bytes(config, model).values())
    plan.lora_optimizer_bytes = plan.lora_parameters * OPTIMIZER_BYTES
    adapter = plan.lora_parameters * WEIGHT_BYTES
    plan.object_store_bytes = max(_MIN_STORE, _ADAPTERS_IN_STORE * adapter + 4 * plan.max_tokens_per_step * TOKEN_BYTES)
    plan.host_memory = host_memory(config, model, engine_model, plan.lora_optimizer_bytes, plan.object_store_bytes)
    plan.host_bytes = sum(plan.host_memory.values())
    plan.checkpoint_bytes = adapter + plan.lora_parameters * _SAVED_STATE
    if args.pipeline:  # the batch of the next step
        routing = plan.architecture.layers * plan.architecture.experts_per_token if args.routing_replay else 0
        plan.checkpoint_bytes += plan.max_tokens_per_step * (TOKEN_BYTES + routing)
    # At least the newest and the best; one from before a drop in correctness; one more until the oldest is deleted;
    # the final adapter; and the copy of the one that the run starts from.
    kept = max(args.max_ckpt_num, 2) + 2 if args.save_steps > 0 else 0
    plan.disk_bytes = kept * plan.checkpoint_bytes + adapter
    if args.adapter:
        weights = Path(args.adapter) / adapter_files.WEIGHTS
        plan.disk_bytes += weights.stat().st_size if weights.is_file() else adapter


def _staleness(plan: Plan, args: argparse.Namespace) -> list[str]:
    if not args.pipeline:
        return []
    first, last = plan.optimizer_steps_per_step, 2 * plan.optimizer_steps_per_step - 1
    return [
        f"            PIPELINE=1: the policy that sampled is {first}"
        + (f" to {last}" if last > first else "")
        + f" optimizer step{'s' * (last > 1)} behind; the ratio compares with it"
    ]


def _loss(args: argparse.Namespace) -> list[str]:
    """Name a loss that does not clip, and the settings that it reads instead of EPS_CLIP."""
    if objectives.is_read("EPS_CLIP", args.policy_loss_type):
        return []
    reads = [name for name in objectives.LOSSES[args.policy_loss_type].reads if name in SETTINGS]
    values = "".join(f"{name} is {getattr(args, SETTINGS[name].flag)}; " for name in reads)
    return [f"loss        {args.policy_loss_type}: {values}EPS_CLIP has no effect"]


def _prompts(args: argparse.Namespace) -> list[str]:
    """Describe which groups a step draws besides those of its batch, and the date in prompts."""
    lines = []
    if args.dynamic_filtering:
        (low, high), most = args.dynamic_filtering_reward_range, args.dynamic_filtering_batches
        lines.append(
            f"groups      with a mean score between {low:g} and {high:g}; at most {most} x {args.rollout_batch_size} = "
            f"{most * args.rollout_batch_size} prompts a step"
        )
    if args.template_date is not None:
        lines.append(f"prompts     say that today is {args.template_date}, also after a resume (TEMPLATE_DATE)")
    return lines


def describe(plan: Plan, config: Config) -> list[str]:
    """Describe the plan in lines for people."""
    args = config.args
    is_simulated = is_cpu_stack() and not (plan.architecture and is_for_gpus(plan.architecture))
    lines = [
        f"rollouts    {args.rollout_batch_size} prompts x {args.n_samples_per_prompt} rollouts = "
        f"{plan.rollouts_per_step}, at most {args.prompt_max_len} + {args.generate_max_len} tokens each "
        f"({plan.max_tokens_per_step:,} in total)",
        *_prompts(args),
        *describe_lengths(config),
        f"update      {plan.rollouts_per_step} rollouts / train batch {args.train_batch_size} (rollouts, not "
        f"prompts) = {format_count(plan.optimizer_steps_per_step, 'optimizer step')} per global step"
        + (", all but the first off-policy" if plan.optimizer_steps_per_step > 1 and not args.pipeline else ""),
        *_staleness(plan, args),
        f"            {format_count(config.actor_ranks, 'rank')} x micro batch {args.micro_train_batch_size} x "
        f"{plan.gradient_accumulation} accumulated = {args.train_batch_size}",
        *_loss(args),
    ]
    if plan.steps is not None:
        lines += _describe_steps(plan, config) + shortfall(plan, config)
    engines = f"{format_count(args.vllm_num_engines, 'engine')} of {args.vllm_tensor_parallel_size}"
    shares = f"{config.engine_gpus} for {engines}, {config.actor_ranks} for the actor"
    if args.colocate_all_models:
        shares = f"{config.gpus} for {engines}, and the same for the actor"
    if is_simulated:
        lines.append(f"devices     {stand_ins(config.gpus)}: {shares}")
    else:
        ray = f"Ray gets {format_count(plan.ray_gpus, 'GPU')} and {format_count(plan.ray_cpus, 'CPU')}"
        lines.append(f"GPUs        {shares}; {ray}")
    if plan.host_bytes is not None:
        lines += _describe_sizes(plan, config)
    if plan.download_bytes:
        lines.append(
            f"download    {size(plan.download_bytes)}: {args.pretrain} is not on this machine; "
            f"hf download {args.pretrain} --exclude 'original/*' 'metal/*'"
        )
    return lines + [f"unknown     {reason}" for reason in plan.unknown]


def _describe_steps(plan: Plan, config: Config) -> list[str]:
    args = config.args
    all_steps = (plan.steps_per_episode or 0) * args.num_episodes
    limit = f", stopped at {args.max_steps}" if args.max_steps and args.max_steps < all_steps else ""
    lines = [
        f"steps       {format_count(plan.prompts or 0, 'prompt')} = "
        f"{format_count(plan.steps_per_episode or 0, 'global step')} per episode "
        f"({format_count(plan.unused_prompts_per_episode or 0, 'prompt')} left over), "
        f"{format_count(args.num_episodes, 'episode')}{limit}: {format_count(plan.steps or 0, 'global step')}",
    ]
    if plan.steps and plan.optimizer_steps_per_step:
        lines += LearningRate.of_run(args, plan.scheduled_optimizer_steps or 0).describe(plan.steps)
    if plan.evals is not None:
        lines.append(
            f"eval        {format_count(plan.evals, 'time')} {format_count(plan.eval_prompts or 0, 'problem')} x "
            f"{format_count(args.eval_n_samples_per_prompt, 'sample')}"
            f"{' and a greedy answer' if greedy.answers(args.eval_temperature) else ''}, "
            f"from {args.eval_dataset}"
        )
    return lines


def shortfall(plan: Plan, config: Config) -> list[str]:
    """Say so if the data end before the steps that were asked for."""
    asked, per_episode = config.args.max_steps, plan.steps_per_episode
    if not asked or plan.steps is None or not per_episode or asked <= plan.steps:
        return []
    return [
        f"            the data suffice for {format_count(plan.steps, 'step')}, not for {asked}; set NUM_EPISODES="
        f"{math.ceil(asked / per_episode)}"
    ]


def _describe_sizes(plan: Plan, config: Config) -> list[str]:
    place = "the actor"
    if config.args.actor_shard == OF_ENGINE:
        place = "engine and actor together" if config.actor_ranks == 1 else "each engine and its rank together"
    rank = plan.architecture.find_expert_rank(config.args) if plan.architecture else 0
    of_experts = f", experts of rank {rank}" if rank else ""
    return [
        f"model       {size(plan.model_file_bytes)} on disk, {size(plan.model_actor_bytes)} in {place}; "
        f"LoRA {plan.lora_parameters:,} parameters{of_experts}, optimizer {size(plan.lora_optimizer_bytes)}",
        f"memory      {size(plan.host_bytes)} on the host:",
        *(f"            {size(count):>9}  {name}" for name, count in plan.host_memory.items()),
        f"disk        {size(plan.disk_bytes)}: checkpoints of {size(plan.checkpoint_bytes)}, final adapter"
        + (", copy of ADAPTER" if config.args.adapter else ""),
    ]


def size(count: int | None) -> str:
    """Format bytes for people: GB with one decimal, MB below one GB."""
    if count is None:
        return "unknown"
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.1f} MB"
