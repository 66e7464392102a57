"""The trainer's flags, and the combinations that it refuses; the parser checks each value alone."""

import argparse
import os
from collections.abc import Iterator
from itertools import chain

from grpo.environments.settings import has_environment
from grpo.flags import ours
from grpo.flags.ours import SHORTEST
from grpo.model.architecture import EXPERTS_TARGET, NO_SHARD, OF_ENGINE, PACKED, TARGETS, ZERO3
from grpo.rollout import chat_template
from grpo.rollout.thinking import Budget
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from grpo.train import lengths
from grpo.train.objectives import LOSSES, is_read

Rows = Iterator[tuple[object, str, str]]  # whether something is wrong, what, and the remedy
# These give a rollout one advantage for all its tokens, which its branches inherit.
ROLLOUT_ESTIMATORS = ("dr_grpo", "rloo", "group_norm")
GROUP_ESTIMATORS = (*ROLLOUT_ESTIMATORS, "reinforce_baseline")  # compare the rollouts of a prompt
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
    parts = [_adapter, _sharing, _memory, _ratio, _loss, _lengths, _thinking]
    parts += [_environment] if has_environment(args) else []
    for is_wrong, what, remedy in chain.from_iterable(part(args) for part in parts):
        if is_wrong:
            yield Problem(what, remedy)


def corrects_for_sampling(args: argparse.Namespace) -> bool:
    """Return whether the loss compares the trained policy with the one that sampled, as the engine recorded it."""
    return bool(args.old_log_probs == "engine" or args.enable_vllm_is_correction)


def _adapter(args: argparse.Namespace) -> Rows:
    unknown = set(args.target_modules) - set(TARGETS) if args.lora_rank > 0 else ()
    what = f"--target_modules {' '.join(args.target_modules)}: the engines have no adapters of other parts"
    yield args.lora_rank <= 0, "only an adapter goes to the engines", "set --lora_rank (64 for the 120b)"
    yield unknown, what, f"choose from {', '.join(TARGETS)}"
    is_unread = args.expert_rank and EXPERTS_TARGET not in args.target_modules
    yield is_unread, f"--expert_rank {args.expert_rank} is for {EXPERTS_TARGET} in --target_modules", "remove it"


def _sharing(args: argparse.Namespace) -> Rows:
    is_shared, is_one_copy = args.colocate_all_models, args.actor_shard == OF_ENGINE
    engines = args.vllm_num_engines * args.vllm_tensor_parallel_size
    ranks = args.actor_num_nodes * args.actor_num_gpus_per_node
    counts = f"the engines have {format_count(engines, 'GPU')} and the actor {format_count(ranks, 'GPU')}"
    equal = "make --actor_num_gpus_per_node equal to --vllm_num_engines x --vllm_tensor_parallel_size"
    yield is_shared and engines != ranks, f"--colocate_all_models: on the same GPUs, {counts}", equal
    needed = {
        "--colocate_all_models": is_shared,
        "--vllm_tensor_parallel_size 1": args.vllm_tensor_parallel_size == 1,
        f"--experts {PACKED}": args.experts == PACKED,
    }
    for flag, is_set in needed.items():
        what = f"--actor_shard engine uses the packed model that an engine holds on the same GPU, and needs {flag}"
        yield is_one_copy and not is_set, what, f"set {flag}, or --actor_shard {NO_SHARD}"
    for name in _ALLOCATOR:
        is_expandable = "expandable_segments:True" in os.environ.get(name, "").replace(" ", "")
        what = f"{name} has expandable_segments:True, whose memory --actor_shard engine cannot share"
        yield is_one_copy and is_expandable, what, f"unset {name}, or set --actor_shard {NO_SHARD}"
    what = "--vllm_enable_sleep gives an engine's memory to the actor, but they have GPUs of their own"
    yield args.vllm_enable_sleep and not is_shared, what, "remove it, or set --colocate_all_models"
    what = "--pipeline samples and trains at the same time, but with --colocate_all_models they take turns"
    yield args.pipeline and is_shared, what, "remove one of them"


def _memory(args: argparse.Namespace) -> Rows:
    yield args.zero_stage != 3, f"--zero_stage {args.zero_stage} is not supported", "use --zero_stage 3"
    is_not_reentrant = args.gradient_checkpointing and not args.gradient_checkpointing_use_reentrant
    what = "--gradient_checkpointing with LoRA under ZeRO-3 raises a CheckpointError unless it is reentrant"
    yield args.zero_stage == 3 and is_not_reentrant, what, "add --gradient_checkpointing_use_reentrant"
    what = f"--offload keeps shares of the model in host memory, but --actor_shard {args.actor_shard} has no shares"
    yield args.offload and args.actor_shard != ZERO3, what, "set --actor_shard zero3, or --no-offload"
    save, evaluate = args.save_steps, args.eval_steps
    differ = args.eval_dataset and save > 0 and evaluate > 0 and save % evaluate and evaluate % save
    what = f"--save_steps {save} and --eval_steps {evaluate} rarely coincide, so the best checkpoint is unknown"
    yield differ, what, "make one a multiple of the other"


def _ratio(args: argparse.Namespace) -> Rows:
    is_weighted, is_engines, top_p = args.enable_vllm_is_correction, args.old_log_probs == "engine", args.top_p
    low, high = args.vllm_is_truncated_threshold
    what = f"--vllm_is_truncated_threshold is {low:g} {high:g}"
    yield is_weighted and not 0 <= low < high, what, "give two numbers from 0 up, the lower one first"
    is_alone = args.vllm_is_max_kl is not None and not is_weighted
    yield is_alone, "--vllm_is_max_kl has no effect by itself", "add --enable_vllm_is_correction, or remove it"
    what = "--old_log_probs engine with --enable_vllm_is_correction corrects for the engine twice"
    yield is_weighted and is_engines, what, "remove one of them"
    what = "--pipeline trains on rollouts of an earlier policy, and nothing corrects for that"
    remedy = "set --old_log_probs engine, or add --enable_vllm_is_correction"
    yield args.pipeline and not corrects_for_sampling(args), what, remedy
    what = f"--top_p {top_p:g} truncates the engine's distribution, which cannot be compared with the trainer's"
    remedy = "set --top_p 1, or neither --enable_vllm_is_correction nor --old_log_probs engine"
    yield top_p < 1 and corrects_for_sampling(args), what, remedy
    is_in_reward = args.init_kl_coef > 0 and not args.use_kl_loss
    yield is_in_reward and top_p < 1, what, "set --top_p 1, or add --use_kl_loss --kl_estimator k3"
    what = f"--kl_estimator {args.kl_estimator} in the reward has a mean gradient of almost 0 near the reference"
    yield is_in_reward and args.kl_estimator != "k1", what, "remove it, or add --use_kl_loss"
    is_free = args.use_kl_loss and not args.init_kl_coef > 0
    yield is_free, "--use_kl_loss has no effect without a coefficient", "set --init_kl_coef, for example 0.001"


def _loss(args: argparse.Namespace) -> Rows:
    kind, estimator = args.policy_loss_type, args.advantage_estimator
    what = f"--gamma {args.gamma:g} has no effect: {estimator} compares whole rollouts"
    yield args.gamma != 1 and estimator != "reinforce", what, "remove it"
    is_apart = LOSSES[kind].of_rollout and args.loss_aggregation != "sequence_mean"
    what = f"--policy_loss_type {kind} has one ratio for the whole rollout"
    yield is_apart, what, "set --loss_aggregation sequence_mean"
    for name in ("eps_clip_low_high", "dual_clip"):
        is_unread = getattr(args, name) is not None and not is_read(f"--{name}", kind)
        yield is_unread, f"--{name} has no effect with --policy_loss_type {kind}", "remove it"
    low, high = args.eps_clip_low_high or (0.2, 0.2)
    remedy = "give a lower bound between 0 and 1 and an upper bound above 0"
    yield not (0 < low < 1 and high > 0), f"--eps_clip_low_high is {low:g} {high:g}", remedy
    low, high = args.dynamic_filtering_reward_range
    what = f"--dynamic_filtering_reward_range is {low:g} {high:g}"
    yield args.dynamic_filtering and not low < high, what, "give two numbers, the smaller one first"


def _lengths(args: argparse.Namespace) -> Rows:
    try:
        chat_template.variables(None, args.template_variables, args.template_date)
    except UserError as error:
        yield True, error.problem.what, error.problem.remedy
    most, schedule, limits = args.generate_max_len, f"--length_schedule {args.length_schedule}", [args.generate_max_len]
    if args.length_schedule is not None:
        try:
            limits = [stage.length for stage in lengths.parse(args.length_schedule)]
        except UserError as error:
            yield True, f"{schedule}: {error.problem.what}", error.problem.remedy
            return
    what = f"{schedule} does not end with --generate_max_len {most}, which the engines are configured for"
    yield limits[-1] != most, what, "make the two equal"
    is_short = min(limits) < SHORTEST and args.thinking_budget is None  # else it is checked with the budget
    what = f"--length_schedule has {min(limits)}: an answer in the model's format does not fit"
    yield is_short, what, f"give {SHORTEST} or more; 3072 is usual"
    buffer = args.overlong_buffer_len
    is_out = buffer is not None and not 0 < buffer <= limits[0]
    yield is_out, f"--overlong_buffer_len is {buffer}", f"give more than 0, up to the first limit {limits[0]}"


def _thinking(args: argparse.Namespace) -> Rows:
    thinking, answer = args.thinking_budget, args.answer_budget
    if thinking is None and answer is None:
        return
    if thinking is None or answer is None:
        given, missing = ("--thinking_budget", "--answer_budget")[:: 1 if answer is None else -1]
        yield True, f"{given} is set, but {missing} is not", f"also set {missing}, in tokens"
        return
    try:
        Budget(thinking, answer)
    except UserError as error:
        yield True, f"--thinking_budget, --answer_budget: {error.problem.what}", error.problem.remedy
    is_other = args.agent_func_path and not has_environment(args)
    what = "--thinking_budget does not work with --agent_func_path: only one can run the rollouts"
    yield is_other, what, "remove one of them"
    what = "--thinking_budget without --enable_prefix_caching computes every cut thought twice"
    yield not args.enable_prefix_caching, what, "add --enable_prefix_caching"
    yield from _context(args)


def _context(args: argparse.Namespace) -> Rows:
    is_short = args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len
    what = f"--max_len {args.max_len} is less than a rollout may fill, whose turns and budgets it would cut"
    yield is_short, what, "remove it; the default is --prompt_max_len + --generate_max_len"


def _environment(args: argparse.Namespace) -> Rows:
    """Yield flags without meaning for multi-turn rollouts."""
    what = "--apply_chat_template does not work with an environment, which formats its own chat"
    yield args.apply_chat_template, what, "remove it"
    yield args.disable_fast_tokenizer, "--disable_fast_tokenizer does not work with an environment", "remove it"
    what = f"--advantage_estimator {args.advantage_estimator} does not give a multi-turn rollout one advantage"
    yield args.advantage_estimator not in ROLLOUT_ESTIMATORS, what, f"use one of {', '.join(ROLLOUT_ESTIMATORS)}"
    is_in_reward = args.init_kl_coef > 0 and not args.use_kl_loss
    what = f"--init_kl_coef {args.init_kl_coef:g} without --use_kl_loss gives each token of a multi-turn rollout "
    yield is_in_reward, f"{what}its own advantage", "add --use_kl_loss --kl_estimator k3"
    what = "--stop_properly_penalty_coef applies to single responses, but a multi-turn rollout has several"
    remedy = "remove it, and let the environment's score use `ending`"
    yield args.stop_properly_penalty_coef is not None, what, remedy
    if args.thinking_budget is None:
        yield from _context(args)
