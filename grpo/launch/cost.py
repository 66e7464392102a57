"""What a whole run costs: calls and tokens of the judge, and hours with their ranges and assumptions."""

from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.judge import RunJudge
from grpo.launch.phases import Rates, phases
from grpo.launch.plan import Plan
from grpo.model.architecture import Architecture

_STEPS = 100
_INSTRUCTIONS = 1_000  # assumed: tokens of the judge's instructions, problem and gold answer


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people. If the data are not known, they are for the steps asked for, or for 100 steps."""
    steps = plan.steps if plan.steps is not None else config.args.max_steps or _STEPS
    return [*_calls(plan, config, judge, steps), *_hours(plan, config, steps)]


def _calls(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if judge.settings is None:
        return []
    calls = steps * plan.samples_per_rollout
    tokens = calls * (_INSTRUCTIONS + config.args.generate_max_len)
    return [
        f"judge cost  {calls:,} calls in {steps:,} steps, plus failed tries; up to {tokens / 1e6:,.1f} million "
        "prompt tokens, if",
        f"            responses fill the limit and problem and instructions take {_INSTRUCTIONS:,} (assumed); a reply "
        f"has at most {judge.settings.chain.max_output_tokens:,}",
    ]


def _hours(plan: Plan, config: Config, steps: int) -> list[str]:
    if plan.architecture is None or not is_for_gpus(plan.architecture):
        return []
    parts = list(phases(config, plan.architecture, Rates.of_report()))
    step, low, high = (sum(getattr(phase, name) for phase in parts) for name in ("seconds", "low", "high"))
    name, value = (max(len(phase.name) for phase in parts), max(len(f"{phase.seconds:,.0f}") for phase in parts))

    def hours(seconds: float) -> str:
        return f"{steps * seconds / 3600:,.1f}"

    return [
        f"hours       {hours(step)} ({hours(low)} to {hours(high)}) for {steps:,} steps of {step:,.0f} s, if all "
        "responses fill the limit; without evaluations and saving",
        *(
            f"            {phase.name:{name}}  {phase.seconds:{value},.0f} s ({phase.low:,.0f} to {phase.high:,.0f}): "
            f"{phase.source}"
            for phase in parts
        ),
    ]


def seconds_of_update(config: Config, architecture: Architecture, rates: Rates) -> float:
    """Return the seconds of a step after sampling, if every sample has the longest length."""
    return sum(phase.seconds for phase in phases(config, architecture, rates) if phase.name != "sampling")
