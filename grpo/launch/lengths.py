"""Describes how the thinking budget combines with the limits, and who gets which problems, in lines for people."""

from argparse import Namespace
from collections import Counter
from pathlib import Path

from grpo.environments import settings
from grpo.environments.mixture import Mixture
from grpo.launch.checks.thinking import read_delimiter
from grpo.launch.config import Config
from grpo.rollout.thinking import Budget
from grpo.stack.problem import UserError
from grpo.train.lengths import parse_stages


def describe_lengths(config: Config) -> list[str]:
    """Return a line for each of them that is set. If one is invalid, the line says so; the preflight refuses it."""
    try:
        return [*_thinking(config.args), *_environments(config.args)]
    except (ValueError, OSError, UserError) as error:
        return [f"unknown     lengths: {error}"]


def _thinking(args: Namespace) -> list[str]:
    stages = parse_stages(args)
    if args.thinking_budget is None or args.answer_budget is None:
        return []
    budget, made = Budget(args.thinking_budget, args.answer_budget), read_delimiter(args)
    if made is None:
        return [f"thinking    {budget.thinking}, a delimiter, and an answer of {budget.answer} tokens"]
    size = len(made.tokens)
    whole = budget.thinking + size + budget.answer
    parts = f"{budget.thinking} + delimiter {size} + answer {budget.answer} = {whole}"
    left = [budget.within(stage.length, size).thinking for stage in stages]
    is_limited = args.length_schedule and min(left) < budget.thinking
    more = f"; the length schedule limits the thinking to {', '.join(map(str, left))}" if is_limited else ""
    return [f"thinking    {parts} of {args.generate_max_len} tokens{more}"]


def _environments(args: Namespace) -> list[str]:
    variables = settings.variables()
    if not settings.has_environment(args) or not variables:
        return []
    mixture = Mixture.from_variables(variables)
    if not mixture.is_several:
        return []
    counts = Counter(mixture.assign_file(Path(args.prompt_data), args.input_key).values())
    return [f"problems    {', '.join(f'{name} {counts[name]}' for name in mixture.names)} of {counts.total()}"]
