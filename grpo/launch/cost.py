"""What a whole run costs: calls and tokens of the judge, and hours."""

from grpo.launch import hours
from grpo.launch.config import Config
from grpo.launch.judge import RunJudge
from grpo.launch.plan import Plan
from grpo.stack.counted import format_count

INSTRUCTIONS = 1_000  # assumed: tokens of the judge's instructions, problem and gold answer
_STEPS = 100
_REPLY = 2_000  # assumed: tokens of a reply of the judge, thoughts included
_INDENT = " " * 12


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people. If the data are not known, they are for the steps asked for, or for 100 steps."""
    steps = plan.steps if plan.steps is not None else config.args.max_steps or _STEPS
    return [*_calls(plan, config, judge, steps), *hours.describe(plan, config, judge, steps)]


def _calls(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if judge.settings is None or judge.is_stand_in:
        return []
    calls = steps * plan.rollouts_per_step
    prompts, replies = calls * (INSTRUCTIONS + config.args.generate_max_len) / 1e6, calls * _REPLY / 1e6
    return [
        f"judge cost  {format_count(calls, 'call')} in {format_count(steps, 'step')}, plus failed tries",
        f"{_INDENT}up to {prompts:,.1f} million prompt tokens: responses of GENERATE_MAX_LEN, and {INSTRUCTIONS:,} "
        "tokens for each problem and the instructions (assumed)",
        f"{_INDENT}{replies:,.1f} million reply tokens: {_REPLY:,} per call (assumed)",
    ]
