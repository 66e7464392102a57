"""The trainer's flags: what follows from those that were given, and the combinations that are refused.

The parser checks each value alone.
"""

import argparse
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from grpo.environments.settings import AGENT, has_environment
from grpo.flags import ours
from grpo.flags.boxes import ENGINE_SHARE
from grpo.flags.ours import SHORTEST
from grpo.flags.parser import make_parser
from grpo.flags.upstream import make_words, trainer_parser
from grpo.model.architecture import EXPERTS_TARGET, NO_SHARD, OF_ENGINE, PACKED, TARGETS, ZERO3
from grpo.rollout import chat_template
from grpo.rollout.thinking import Budget
from grpo.run.eval_metric import OUR_REWARD, USER_REWARD
from grpo.stack.checkout import CHECKOUT
from grpo.stack.command import format_count
from grpo.stack.problem import Problem, UserError
from grpo.train import lengths
from grpo.train.objectives import LOSSES, is_read

Rows = Iterator[tuple[object, str, str]]  # whether something is wrong, what, and the remedy
Values = Mapping[str, Any]
# These give a rollout one advantage for all its tokens, which its branches inherit.
ROLLOUT_ESTIMATORS = ("dr_grpo", "rloo", "group_norm")
GROUP_ESTIMATORS = (*ROLLOUT_ESTIMATORS, "reinforce_baseline")  # compare the rollouts of a prompt
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # PyTorch's old and new name of the same


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags to the parser of ``openrlhf.cli.train_ppo_ray``."""
    ours.add_flags(parser)
    parser._option_string_actions["--policy_loss_type"].choices = tuple(LOSSES)  # OpenRLHF knows two of them


def make_trainer_words(values: Values) -> list[str]:
    """Return the trainer's command line: the flags that were given, our defaults, and what follows from them."""
    known = {name: value for name, value in {**ours.DEFAULTS, **values}.items() if value is not None}
    flags = _derive(known) | known | {"remote_rm_url": _choose_program(values.get("remote_rm_url") or "")}
    # OpenRLHF takes a folder and a key. The first follows from the run directory, the second is in the environment.
    flags |= {name: "1" if known.get(name) else None for name in ("use_tensorboard", "use_wandb")}
    return make_words(trainer_parser(), flags)


def _derive(known: Values) -> dict[str, Any]:
    """Return the flags that follow from others, unless they are given."""
    train = known.get("prompt_data") or str(CHECKOUT / "data" / "prepared" / "train.jsonl")
    environment = known.get("environment")
    derived = {
        "engine_model": known.get("pretrain"),
        "prompt_data": train,
        "eval_dataset": str(Path(train).with_name("eval.jsonl")),
        "old_log_probs": "engine" if known.get("pipeline") else "trainer",
        "vllm_gpu_memory_utilization": None if known.get("colocate_all_models") else ENGINE_SHARE,
        "offload": True if known.get("experts") == "bf16" and known.get("actor_shard", ZERO3) == ZERO3 else None,
        "eval_n_samples_per_prompt": 8 if known["eval_temperature"] else 1,
        # The rollouts of a prompt share it. Each turn, and the answer after a cut thought, is a separate call.
        "enable_prefix_caching": True,
        # Non-reentrant checkpointing fails with LoRA under ZeRO-3.
        "gradient_checkpointing_use_reentrant": known["gradient_checkpointing"],
        # The actor is its own reference; OpenRLHF wants their sizes to be equal if GPUs are shared.
        "actor_num_nodes": 1,
        "ref_num_nodes": 1,
        "ref_num_gpus_per_node": known.get("actor_num_gpus_per_node"),
    }
    # An environment formats the chat itself.
    return derived | ({"agent_func_path": str(AGENT)} if environment else {"apply_chat_template": True})


def make_variables(values: Values) -> dict[str, str]:
    """Return the variables for every worker: judge, reward and environment."""
    exported = {name: values.get(name, make_parser().get_default(name)) for name in ours.EXPORTED}
    exported["environment"] = " ".join(_split_files(values.get("environment") or ""))
    reward = values.get("remote_rm_url") or ""
    own = _split_files(reward) if _choose_program(reward) == str(USER_REWARD) else []
    exported["reward_files"] = os.pathsep.join(map(os.path.realpath, own))
    return {f"GRPO_{name.upper()}": _as_text(value) for name, value in exported.items()}


def _split_files(text: str) -> list[str]:
    """Return the names in a flag; a file whose name has blanks is one."""
    return [text] if os.path.isfile(text) else text.replace(",", " ").split()


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choose_program(reward: str) -> str:
    """Return what the trainer calls: a server, this project's file, or that which calls the user's files."""
    if reward.startswith(("http://", "https://")):
        return reward
    is_ours = not reward or (os.path.exists(reward) and os.path.samefile(reward, OUR_REWARD))
    return str(OUR_REWARD if is_ours else USER_REWARD)


def validate(args: argparse.Namespace) -> None:
    """Refuse invalid arguments in the trainer, before Ray starts: SystemExit has a line for each problem."""
    refused = [f"train_ppo_ray: {problem.what}: {problem.remedy}" for problem in problems(args)]
    if refused:
        raise SystemExit("\n".join(refused))


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    parts = [_adapter, _sharing, _memory, _ratio, _loss, _lengths, _thinking]
    parts += [_environment] if has_environment(args) else []
    parts += [_context] if has_environment(args) or args.thinking_budget is not None else []
    for is_wrong, what, remedy in chain.from_iterable(part(args) for part in parts):
        if is_wrong:
            yield Problem(what, remedy)


def corrects_for_sampling(args: argparse.Namespace) -> bool:
    """Return whether the loss compares the trained policy with the one that sampled, as the engine recorded it."""
    return bool(args.old_log_probs == "engine" or args.enable_vllm_is_correction)


def _adapter(args: argparse.Namespace) -> Rows:
    yield args.lora_rank <= 0, "only an adapter goes to the engines", "set --lora_rank (64 for the 120b)"
    unknown = set(args.target_modules) - set(TARGETS) if args.lora_rank > 0 else ()
    what = f"--target_modules {' '.join(args.target_modules)}: the engines have no adapters of other parts"
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
    is_in_reward = args.init_kl_coef > 0 and not args.use_kl_loss
    what = f"--top_p {top_p:g} truncates the engine's distribution, which cannot be compared with the trainer's"
    remedy = "set --top_p 1, or neither --enable_vllm_is_correction nor --old_log_probs engine"
    yield top_p < 1 and corrects_for_sampling(args), what, remedy
    yield top_p < 1 and is_in_reward, what, "set --top_p 1, or add --use_kl_loss --kl_estimator k3"
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
    budgets = {"--thinking_budget": args.thinking_budget, "--answer_budget": args.answer_budget}
    if args.thinking_budget is None and args.answer_budget is None:
        return
    for missing in (name for name, value in budgets.items() if value is None):
        yield True, f"{' and '.join(budgets)} belong together, but {missing} is not set", f"set {missing}, in tokens"
        return
    try:
        Budget(args.thinking_budget, args.answer_budget)
    except UserError as error:
        yield True, f"--thinking_budget, --answer_budget: {error.problem.what}", error.problem.remedy
    is_other = args.agent_func_path and not has_environment(args)
    what = "--thinking_budget does not work with --agent_func_path: only one can run the rollouts"
    yield is_other, what, "remove one of them"


def _context(args: argparse.Namespace) -> Rows:
    is_short = args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len
    what = f"--max_len {args.max_len} is less than a rollout may fill, whose turns and budgets it would cut"
    yield is_short, what, "remove it; the default is --prompt_max_len + --generate_max_len"


def _environment(args: argparse.Namespace) -> Rows:
    """Yield flags without meaning for multi-turn rollouts."""
    for name in ("apply_chat_template", "disable_fast_tokenizer"):
        what = f"--{name} does not work with an environment, which formats its own chat"
        yield getattr(args, name), what, "remove it"
    what = f"--advantage_estimator {args.advantage_estimator} does not give a multi-turn rollout one advantage"
    yield args.advantage_estimator not in ROLLOUT_ESTIMATORS, what, f"use one of {', '.join(ROLLOUT_ESTIMATORS)}"
    is_in_reward = args.init_kl_coef > 0 and not args.use_kl_loss
    what = f"--init_kl_coef {args.init_kl_coef:g} without --use_kl_loss gives each token of a multi-turn rollout "
    yield is_in_reward, f"{what}its own advantage", "add --use_kl_loss --kl_estimator k3"
    what = "--stop_properly_penalty_coef applies to single responses, but a multi-turn rollout has several"
    remedy = "remove it, and let the environment's score use `ending`"
    yield args.stop_properly_penalty_coef is not None, what, remedy
