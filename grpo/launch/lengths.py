"""Describes length schedule, thinking budget and environment in lines for people."""

from argparse import Namespace
from collections import Counter
from pathlib import Path

from grpo.environments import settings
from grpo.environments.mixture import Mixture
from grpo.launch.checks.thinking import read_delimiter
from grpo.launch.config import Config
from grpo.rollout.thinking import Budget
from grpo.stack.problem import UserError
from grpo.train.lengths import WINDOW, parse_stages


def describe_lengths(config: Config) -> list[str]:
    """Return a line for each of them that is set. If one is invalid, the line says so; the preflight refuses it."""
    try:
        return [*_schedule(config.args), *_thinking(config.args), *_environment(config.args)]
    except (ValueError, OSError, UserError) as error:
        return [f"unknown     lengths: {error}"]


def _schedule(args: Namespace) -> list[str]:
    if not args.length_schedule:
        return []
    first, *later = parse_stages(args)
    limits = [f"{first.length} tokens at first"]
    for stage in later:
        begin = f"from step {stage.step}"
        if stage.truncated is not None:
            begin = f"once {100 * stage.truncated:g}% are truncated over {WINDOW} steps"
        limits.append(f"{stage.length} {begin}")
    return [f"lengths     {', '.join(limits)}; evaluations {args.generate_max_len}"]


def _thinking(args: Namespace) -> list[str]:
    if args.thinking_budget is None or args.answer_budget is None:
        return []
    budget, made = Budget(args.thinking_budget, args.answer_budget), read_delimiter(args)
    if made is None:
        return [f"thinking    {budget.thinking}, a delimiter, and an answer of {budget.answer} tokens"]
    size = len(made.tokens)
    line = (
        f"thinking    {budget.thinking} + delimiter {size} + answer {budget.answer} = "
        f"{budget.thinking + size + budget.answer} of {args.generate_max_len} tokens"
    )
    left = [budget.within(stage.length, size).thinking for stage in parse_stages(args)]
    if args.length_schedule and min(left) < budget.thinking:
        line += f"; the length schedule limits the thinking to {', '.join(map(str, left))}"
    return [line]


def _environment(args: Namespace) -> list[str]:
    variables = settings.variables()
    if not settings.has_environment(args) or not variables:
        return []
    limits = ", ".join(f"{name} {value}" for name, value in variables.items() if not name.startswith("ENVIRONMENT"))
    lines = [f"environment {variables['ENVIRONMENT']}" + (f": {limits}" if limits else "")]
    mixture = Mixture.from_variables(variables)
    if mixture.is_several:
        counts = Counter(mixture.assign_file(Path(args.prompt_data), args.input_key).values())
        shares = ", ".join(f"{name} {counts[name]}" for name in mixture.names)
        lines.append(f"problems    {shares} of {counts.total()}")
    return lines
