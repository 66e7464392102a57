"""Flags of sampling, lengths, the thinking budget and environments that the trainer refuses."""

import argparse
from collections.abc import Iterator

from grpo.environments.settings import has_environment
from grpo.flags.ours import SHORTEST
from grpo.rollout import chat_template
from grpo.rollout.thinking import Budget
from grpo.stack.problem import Problem, UserError
from grpo.train import lengths

# These give a rollout one advantage for all its tokens, which its branches inherit.
ROLLOUT_ESTIMATORS = ("dr_grpo", "rloo", "group_norm")
GROUP_ESTIMATORS = (*ROLLOUT_ESTIMATORS, "reinforce_baseline")  # compare the rollouts of a prompt
_WHOLE_CONTEXT = "remove it; the default is --prompt_max_len + --generate_max_len"


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    try:
        chat_template.variables(None, args.template_variables, args.template_date)
    except UserError as error:
        yield error.problem
    yield from _groups(args)
    yield from _lengths(args)
    yield from _thinking(args)
    if has_environment(args):
        yield from _environment(args)


def _groups(args: argparse.Namespace) -> Iterator[Problem]:
    low, high = args.dynamic_filtering_reward_range
    if args.dynamic_filtering and not low < high:
        yield Problem(
            f"--dynamic_filtering_reward_range is {low:g} {high:g}", "give two numbers, the smaller one first"
        )


def _lengths(args: argparse.Namespace) -> Iterator[Problem]:
    limits = [args.generate_max_len]
    if args.length_schedule is not None:
        try:
            limits = [stage.length for stage in lengths.parse(args.length_schedule)]
        except UserError as error:
            what, remedy = error.problem.what, error.problem.remedy
            yield Problem(f"--length_schedule {args.length_schedule}: {what}", remedy)
            return
        if limits[-1] != args.generate_max_len:
            yield Problem(
                f"--length_schedule {args.length_schedule} does not end with --generate_max_len "
                f"{args.generate_max_len}, which the engines are configured for",
                "make the two equal",
            )
    if min(limits) < SHORTEST and args.thinking_budget is None:  # else it is checked with the budget
        yield Problem(
            f"--length_schedule has {min(limits)}: an answer in the model's format does not fit",
            f"give {SHORTEST} or more; 3072 is usual",
        )
    if args.overlong_buffer_len is not None and not 0 < args.overlong_buffer_len <= limits[0]:
        yield Problem(
            f"--overlong_buffer_len is {args.overlong_buffer_len:g}",
            f"give more than 0, up to the first limit {limits[0]}",
        )


def _thinking(args: argparse.Namespace) -> Iterator[Problem]:
    if args.thinking_budget is None or args.answer_budget is None:
        if args.thinking_budget is not None:
            yield Problem("--thinking_budget is set, but --answer_budget is not", "also set --answer_budget, in tokens")
        elif args.answer_budget is not None:
            yield Problem(
                "--answer_budget is set, but --thinking_budget is not", "also set --thinking_budget, in tokens"
            )
        return
    try:
        Budget(args.thinking_budget, args.answer_budget)
    except UserError as error:
        yield error.problem
    if args.agent_func_path and not has_environment(args):
        yield Problem(
            "--thinking_budget does not work with --agent_func_path: only one can run the rollouts",
            "remove one of them",
        )
    if not args.enable_prefix_caching:
        yield Problem(
            "--thinking_budget without --enable_prefix_caching computes every cut thought twice",
            "add --enable_prefix_caching",
        )
    if args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len:
        yield Problem(f"--max_len {args.max_len} would cut responses within their budgets", _WHOLE_CONTEXT)


def _environment(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield flags without meaning for multi-turn rollouts."""
    if args.apply_chat_template:
        yield Problem(
            "--apply_chat_template does not work with an environment, which formats its own chat", "remove it"
        )
    if args.disable_fast_tokenizer:
        yield Problem("--disable_fast_tokenizer does not work with an environment", "remove it")
    if args.advantage_estimator not in (*ROLLOUT_ESTIMATORS, "gae"):  # gae is refused anyway
        yield Problem(
            f"--advantage_estimator {args.advantage_estimator} does not give a multi-turn rollout one advantage",
            f"use one of {', '.join(ROLLOUT_ESTIMATORS)}",
        )
    if args.init_kl_coef > 0 and not args.use_kl_loss:
        yield Problem(
            f"--init_kl_coef {args.init_kl_coef:g} without --use_kl_loss gives every token its own advantage, but a "
            "multi-turn rollout needs one for all its tokens",
            "add --use_kl_loss --kl_estimator k3",
        )
    if args.stop_properly_penalty_coef is not None:
        yield Problem(
            "--stop_properly_penalty_coef applies to single responses, but a multi-turn rollout has several",
            "remove it, and let the environment's score use `ending`",
        )
    is_short = args.max_len is not None and args.max_len < args.prompt_max_len + args.generate_max_len
    if is_short and args.thinking_budget is None:
        yield Problem(f"--max_len {args.max_len} is a smaller context than the turns may fill", _WHOLE_CONTEXT)
