"""What a whole run costs: calls and tokens of the judge, and hours with their ranges and assumptions."""

from collections.abc import Sequence

from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.judge import RunJudge
from grpo.launch.phases import SAMPLING, Phase, Rates, phases
from grpo.launch.plan import Plan
from grpo.model.architecture import Architecture
from grpo.stack.counted import counted

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
        f"judge cost  {counted(calls, 'call')} in {counted(steps, 'step')}, plus failed tries; up to "
        f"{tokens / 1e6:,.1f} million prompt tokens, if",
        f"            responses fill the limit and problem and instructions take {_INSTRUCTIONS:,} (assumed); a reply "
        f"has at most {judge.settings.chain.max_output_tokens:,}",
    ]


def _hours(plan: Plan, config: Config, steps: int) -> list[str]:
    if plan.architecture is None or not is_for_gpus(plan.architecture):
        return []
    parts = list(phases(config, plan.architecture, Rates.of_report()))
    step, low, high = (_step(parts, name, config.args.pipeline) for name in ("seconds", "low", "high"))
    name, value = (max(len(phase.name) for phase in parts), max(len(f"{phase.seconds:,.0f}") for phase in parts))

    def hours(seconds: float) -> str:
        return f"{steps * seconds / 3600:,.1f}"

    return [
        f"hours       {hours(step)} ({hours(low)} to {hours(high)}) for {counted(steps, 'step')} of {step:,.0f} s, "
        "if all responses fill the limit; without evaluations and saving",
        *(
            f"            {phase.name:{name}}  {phase.seconds:{value},.0f} s ({phase.low:,.0f} to {phase.high:,.0f}): "
            f"{phase.source}"
            for phase in parts
        ),
        *_other_way(parts, step, config.args.pipeline),
    ]


def _step(parts: Sequence[Phase], which: str, is_pipeline: bool) -> float:
    """Return the seconds of a step: with PIPELINE=1 the longer of sampling and all else."""
    sampling = sum(getattr(phase, which) for phase in parts if phase.name == SAMPLING)
    others = sum(getattr(phase, which) for phase in parts if phase.name != SAMPLING)
    return max(sampling, others) if is_pipeline else sampling + others


def _other_way(parts: Sequence[Phase], step: float, is_pipeline: bool) -> list[str]:
    other = _step(parts, "seconds", not is_pipeline)
    if is_pipeline:
        return [
            f"            PIPELINE=1: a step takes the longer of sampling and the rest; 0 would take {other:,.0f} s"
        ]
    return [f"            PIPELINE=1 would take {other:,.0f} s, the longer of sampling and the rest"]


def seconds_of_step(config: Config, architecture: Architecture, rates: Rates) -> float:
    """Return the seconds of a step, if every sample has the longest length."""
    return _step(list(phases(config, architecture, rates)), "seconds", config.args.pipeline)


def seconds_of_update(config: Config, architecture: Architecture, rates: Rates) -> float:
    """Return the seconds of a step after sampling, if every sample has the longest length."""
    return sum(phase.seconds for phase in phases(config, architecture, rates) if phase.name != SAMPLING)
