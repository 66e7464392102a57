"""What a configuration means: batches, steps, host memory, disk."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.launch.checks.data import read_records
from grpo.launch.config import Config
from grpo.launch.host_memory import OPTIMIZER, WEIGHT, is_for_gpus, list_host_parts
from grpo.model import released
from grpo.model.architecture import OF_ENGINE, PACKED, Architecture
from grpo.model.model_files import CheckpointError, Model
from grpo.rollout.stage import count_greedy
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.command import format_count
from grpo.stack.machine import GB, stand_ins
from grpo.stack.problem import UserError
from grpo.train import objectives
from grpo.train.optimizer_steps import LearningRate, count_steps, count_updates

_SAVED = 12  # bytes per LoRA parameter in a checkpoint, beside its bf16 weight
# Object store: a few adapters in flight, and rollouts (ids, masks, log-probs, advantages: 32 bytes a token).
_ADAPTERS_IN_STORE, _TOKEN, _MIN_STORE = 8, 32, 512 * 2**20
_NEXT = " " * 12


@dataclass
class Plan:
    """Numbers that follow from a configuration. Sizes are in bytes; None if the model or the data cannot be read."""

    rollouts_per_step: int
    optimizer_steps_per_step: int
    max_tokens_per_step: int
    ray_gpus: int
    ray_cpus: int
    prompts: int | None = None
    steps_per_episode: int | None = None
    steps: int | None = None
    eval_prompts: int | None = None
    evals: int | None = None
    architecture: Architecture | None = None
    model_file_bytes: int | None = None
    model_bf16_bytes: int | None = None
    model_actor_bytes: int | None = None
    checkpoint_bytes: int | None = None
    disk_bytes: int | None = None
    object_store_bytes: int = _MIN_STORE
    host_memory: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)  # what cannot be read; the preflight refuses it

    @property
    def host_bytes(self) -> int | None:
        """Return the bytes of host memory."""
        return sum(self.host_memory.values()) or None


def make_plan(config: Config) -> Plan:
    """Compute the plan."""
    args, rollouts = config.args, config.rollouts_per_step
    # Ray: one CPU for each bundle, one for the trainer, and a few for its own processes.
    plan = Plan(rollouts, count_updates(args), rollouts * config.max_model_len, config.gpus, config.gpus + 4)
    try:
        _add_steps(plan, config)
    except UserError as error:
        plan.unknown.append(f"steps and evals: {error}")
    try:
        _add_sizes(plan, config, released.find(args.pretrain), released.find(args.engine_model))
    except CheckpointError as error:
        plan.unknown.append(f"memory and disk: {error}")
    return plan


def _add_steps(plan: Plan, config: Config) -> None:
    args = config.args
    plan.prompts = len(read_records(Path(args.prompt_data or ""), args.input_key, args.label_key))
    plan.steps_per_episode, plan.steps = plan.prompts // args.rollout_batch_size, count_steps(args, plan.prompts)
    if not args.eval_dataset:
        return
    plan.eval_prompts = len(read_records(Path(args.eval_dataset), args.input_key, args.label_key))
    if plan.eval_prompts and args.eval_steps > 0:
        plan.evals = math.ceil(plan.steps / args.eval_steps) + int(args.eval_at_start)  # always the last step


def _add_sizes(plan: Plan, config: Config, model: Model, engine_model: Model) -> None:
    args = config.args
    plan.architecture = shape = Architecture.from_config(model.config)
    packed, lora = sum(shape.actor_bytes(packed=True).values()), shape.count_lora_parameters(args)
    plan.model_bf16_bytes = model.bf16_bytes
    plan.model_file_bytes = packed if args.pretrain in released.RELEASED else model.file_bytes
    plan.model_actor_bytes = sum(shape.actor_bytes(args.experts == PACKED).values())
    in_flight = _ADAPTERS_IN_STORE * WEIGHT * lora + 4 * plan.max_tokens_per_step * _TOKEN
    plan.object_store_bytes = max(_MIN_STORE, in_flight)
    plan.host_memory = list_host_parts(config, shape, engine_model, plan.object_store_bytes)
    plan.checkpoint_bytes = (WEIGHT + _SAVED) * lora
    if args.pipeline:  # the batch of the next step
        routing = shape.layers * shape.experts_per_token if args.routing_replay else 0
        plan.checkpoint_bytes += plan.max_tokens_per_step * (_TOKEN + routing)
    # At least the newest and the best; one more until the oldest is deleted; the final adapter; and the copy of the
    # one that the run starts from.
    kept = max(args.max_ckpt_num, 2) + 1 if args.save_steps > 0 else 0
    plan.disk_bytes = kept * plan.checkpoint_bytes + WEIGHT * lora
    if args.adapter:
        weights = Path(args.adapter) / adapter_files.WEIGHTS
        plan.disk_bytes += weights.stat().st_size if weights.is_file() else WEIGHT * lora


def describe(plan: Plan, config: Config) -> list[str]:
    """Describe the plan in lines for people."""
    args = config.args
    lines = [
        f"rollouts    {args.rollout_batch_size} prompts x {args.n_samples_per_prompt} rollouts = "
        f"{plan.rollouts_per_step}, at most {args.prompt_max_len} + {args.generate_max_len} tokens each "
        f"({plan.max_tokens_per_step:,} in total)"
    ]
    if args.template_date is not None:
        lines.append(f"prompts     say that today is {args.template_date}, also after a resume (--template_date)")
    lines += [*_describe_update(plan, config), *_describe_steps(plan, config)]
    engines = f"{format_count(args.vllm_num_engines, 'engine')} of {args.vllm_tensor_parallel_size}"
    shares = f"{config.engine_gpus} for {engines}, {config.actor_ranks} for the actor"
    if args.colocate_all_models:
        shares = f"{config.gpus} for {engines}, and the same for the actor"
    if is_cpu_stack() and not (plan.architecture and is_for_gpus(plan.architecture)):
        lines.append(f"devices     {stand_ins(config.gpus)}: {shares}")
    else:
        ray = f"Ray gets {format_count(plan.ray_gpus, 'GPU')} and {format_count(plan.ray_cpus, 'CPU')}"
        lines.append(f"GPUs        {shares}; {ray}")
    return lines + _describe_sizes(plan, config) + [f"unknown     {reason}" for reason in plan.unknown]


def _describe_update(plan: Plan, config: Config) -> list[str]:
    args, updates = config.args, plan.optimizer_steps_per_step
    ranks, micro_batch = config.actor_ranks, args.micro_train_batch_size
    is_stale = updates > 1 and not args.pipeline
    lines = [
        f"update      {plan.rollouts_per_step} rollouts / train batch {args.train_batch_size} (rollouts, not prompts) "
        f"= {format_count(updates, 'optimizer step')} per global step"
        + (", all but the first off-policy" if is_stale else ""),
        f"{_NEXT}{format_count(ranks, 'rank')} x micro batch {micro_batch} x "
        f"{args.train_batch_size // (micro_batch * ranks)} accumulated = {args.train_batch_size}",
    ]
    if args.pipeline:
        behind = f"{updates} to {2 * updates - 1} optimizer steps" if updates > 1 else f"{updates} optimizer step"
        lines.insert(1, f"{_NEXT}--pipeline: the policy that sampled is {behind} behind; the ratio compares with it")
    if not objectives.is_read("--eps_clip", args.policy_loss_type):
        reads = objectives.LOSSES[args.policy_loss_type].reads
        values = "".join(f"{name} is {getattr(args, name[2:])}; " for name in reads)
        lines.append(f"loss        {args.policy_loss_type}: {values}--eps_clip has no effect")
    return lines


def _describe_steps(plan: Plan, config: Config) -> list[str]:
    args, per_episode = config.args, plan.steps_per_episode or 0
    if plan.prompts is None or plan.steps is None:
        return []
    is_cut = args.max_steps and args.max_steps < per_episode * args.num_episodes
    lines = [
        f"steps       {format_count(plan.prompts, 'prompt')} = {format_count(per_episode, 'global step')} per episode "
        f"({format_count(plan.prompts % args.rollout_batch_size, 'prompt')} left over), "
        f"{format_count(args.num_episodes, 'episode')}{f', stopped at {args.max_steps}' if is_cut else ''}: "
        f"{format_count(plan.steps, 'global step')}",
    ]
    if updates := plan.steps * plan.optimizer_steps_per_step:
        lines += _describe_rates(LearningRate.of_run(args, updates), plan.steps)
    if plan.evals is not None:
        more = " and a greedy answer" if count_greedy(args.eval_temperature) else ""
        lines.append(
            f"eval        {format_count(plan.evals, 'time')} {format_count(plan.eval_prompts or 0, 'problem')} x "
            f"{format_count(args.eval_n_samples_per_prompt, 'sample')}{more}, from {args.eval_dataset}"
        )
    return lines + shortfall(plan, config)


def _describe_rates(schedule: LearningRate, steps: int) -> list[str]:
    warm_up = math.ceil(schedule.warm_up / schedule.per_step)
    # The mean over a step reaches the peak only after the step in which the warmup ends.
    shown = sorted({1, 2, 3, warm_up + 1, steps} & set(range(1, steps + 1)))
    rates = ", ".join(f"{schedule.compute_at_step(step):.3g} in step {step}" for step in shown)
    return [
        f"schedule    {schedule.name} over {format_count(schedule.length, 'optimizer step')}, "
        f"warmup {schedule.warm_up} ({format_count(warm_up, 'global step')})",
        f"{_NEXT}learning rate: {rates}; the peak of the schedule is {schedule.peak:g}",
    ]


def shortfall(plan: Plan, config: Config) -> list[str]:
    """Say so if the data end before the steps that were asked for."""
    asked, per_episode = config.args.max_steps, plan.steps_per_episode
    if not asked or plan.steps is None or not per_episode or asked <= plan.steps:
        return []
    needed = f"set --num_episodes {math.ceil(asked / per_episode)}"
    return [f"{_NEXT}the data suffice for {format_count(plan.steps, 'step')}, not for {asked}; {needed}"]


def _describe_sizes(plan: Plan, config: Config) -> list[str]:
    args, shape = config.args, plan.architecture
    if shape is None:
        return []
    place = "the actor"
    if args.actor_shard == OF_ENGINE:
        place = "engine and actor together" if config.actor_ranks == 1 else "each engine and its rank together"
    rank, lora = shape.find_expert_rank(args), shape.count_lora_parameters(args)
    return [
        f"model       {size(plan.model_file_bytes)} on disk, {size(plan.model_actor_bytes)} in {place}; LoRA {lora:,} "
        f"parameters{f', experts of rank {rank}' if rank else ''}, optimizer {size(OPTIMIZER * lora)}",
        f"memory      {size(plan.host_bytes)} on the host:",
        *list_sizes(plan.host_memory),
        f"disk        {size(plan.disk_bytes)}: checkpoints of {size(plan.checkpoint_bytes)}, final adapter"
        + (", copy of --adapter" if args.adapter else ""),
    ]


def list_sizes(parts: dict[str, int]) -> list[str]:
    """Return a line for each part of the memory."""
    return [f"{_NEXT}{size(count):>9}  {name}" for name, count in parts.items()]


def size(count: int | None) -> str:
    """Format bytes for people: GB with one decimal, MB below one GB."""
    if count is None:
        return "unknown"
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.1f} MB"
