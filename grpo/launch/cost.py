"""What a whole run costs: calls, tokens and price of the judge, and hours with their ranges and assumptions."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from grpo.launch import fitting, gpu_limits, gpu_memory, splits
from grpo.launch.config import Config
from grpo.launch.decoding import ALL_REDUCE, RAY
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.judge import RunJudge
from grpo.launch.phases import ACTOR, BETWEEN, ENGINES, INSTRUCTIONS, JUDGE, Phase, Rates, phases, sampling
from grpo.launch.plan import Plan
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.stack.counted import format_count

_STEPS = 100
_REPLY = 2_000  # assumed: tokens of a reply of the judge, thoughts included
_INDENT = " " * 12


def describe(plan: Plan, config: Config, judge: RunJudge) -> list[str]:
    """Return lines for people. If the data are not known, they are for the steps asked for, or for 100 steps."""
    steps = plan.steps if plan.steps is not None else config.args.max_steps or _STEPS
    return [*_calls(plan, config, judge, steps), *_hours(plan, config, judge, steps)]


def _calls(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if judge.settings is None or judge.is_stand_in:
        return []
    calls = steps * plan.rollouts_per_step
    prompts, replies = calls * (INSTRUCTIONS + config.args.generate_max_len) / 1e6, calls * _REPLY / 1e6
    lines = [
        f"judge cost  {format_count(calls, 'call')} in {format_count(steps, 'step')}, plus failed tries",
        f"{_INDENT}up to {prompts:,.1f} million prompt tokens: responses of GENERATE_MAX_LEN, and {INSTRUCTIONS:,} "
        "tokens for each problem and the instructions (assumed)",
        f"{_INDENT}{replies:,.1f} million reply tokens: {_REPLY:,} per call (assumed)",
    ]
    if judge.settings.price:
        for_prompts, for_replies = judge.settings.price
        lines.append(f"{_INDENT}{prompts * for_prompts + replies * for_replies:,.0f} USD at JUDGE_PRICE")
    return lines


def _hours(plan: Plan, config: Config, judge: RunJudge, steps: int) -> list[str]:
    if plan.architecture is None or not is_for_gpus(plan.architecture) or list(gpu_limits.problems(config)):
        return []
    rates = Rates.from_report()
    parts = list(phases(plan, config, judge, rates))
    step, low, high = (_step(parts, name, config.args.pipeline) for name in ("seconds", "low", "high"))
    name, value = (max(len(phase.name) for phase in parts), max(len(f"{phase.seconds:,.0f}") for phase in parts))

    def hours(seconds: float) -> str:
        return f"{steps * seconds / 3600:,.1f}"

    return [
        f"hours       {hours(step)} ({hours(low)} to {hours(high)}) for {format_count(steps, 'step')} of {step:,.0f} "
        "s, if every response reaches the length limit",
        *(
            f"{_INDENT}{phase.name:{name}}  {phase.seconds:{value},.0f} s ({phase.low:,.0f} to {phase.high:,.0f}): "
            f"{phase.source}"
            for phase in parts
        ),
        *_other_ways(plan, config, judge, rates),
        *_layouts(plan.architecture, config, rates, parts[0]),
        *_other_split(plan, config, judge, rates),
    ]


def _step(parts: Sequence[Phase], which: str, is_pipeline: bool) -> float:
    """Return the seconds of a step: with PIPELINE=1, engines, judge, and actor work at the same time.

    A batch then passes through all of them in two steps; see docs/pipeline.md.
    """
    engines, judge, actor, between = (
        sum(getattr(phase, which) for phase in parts if phase.whose == whose)
        for whose in (ENGINES, JUDGE, ACTOR, BETWEEN)
    )
    of_batch = engines + judge + actor + between
    return max(engines + between, actor + between, of_batch / 2) if is_pipeline else of_batch


def _other_ways(plan: Plan, config: Config, judge: RunJudge, rates: Rates) -> Iterator[str]:
    args = config.args

    def seconds(other: Config) -> str:
        return f"{seconds_of_step(plan, other, judge, rates):,.0f} s per step"

    if not args.colocate_all_models:
        how = "engines and actor take turns" if args.pipeline else "engines, judge, and actor work at the same time"
        yield f"{_INDENT}PIPELINE={1 - args.pipeline} would take {seconds(_switch_pipeline(config))}: {how}"
    elif not args.vllm_enable_sleep:
        asleep = fitting.leave_to_engine(config.assume_flags(vllm_enable_sleep=True))
        yield f"{_INDENT}-- --vllm_enable_sleep would take {seconds(asleep)}: the cache has the actor's memory, too"
    eager = config.assume_flags(enforce_eager=not args.enforce_eager)
    yield f"{_INDENT}ENFORCE_EAGER={1 - args.enforce_eager} would take {seconds(eager)}"


def _switch_pipeline(config: Config) -> Config:
    """Return the configuration with the other value of PIPELINE."""
    other: dict[str, Any] = {"pipeline": not config.args.pipeline}
    if "OLD_LOG_PROBS" not in os.environ:  # train_grpo.sh then lets PIPELINE choose
        other["old_log_probs"] = "trainer" if config.args.pipeline else "engine"
    return config.assume_flags(**other)


def _layouts(model: Architecture, config: Config, rates: Rates, now: Phase) -> Iterator[str]:
    """Yield how the same GPUs would sample as more or fewer engines."""
    if config.args.actor_shard == OF_ENGINE:  # an engine is then of one GPU
        return
    gpus, several = config.engine_gpus, ""
    for width in (1, 2):
        if width == config.args.vllm_tensor_parallel_size or gpus % width:
            continue
        other = config.assume_flags(vllm_num_engines=gpus // width, vllm_tensor_parallel_size=width)
        settings, need = f"NUM_ENGINES={gpus // width} ENGINE_TP={width}", gpu_memory.needs(other)
        if need and not need.engine_fits:
            yield f"{_INDENT}{settings} does not fit: its cache has {gpu_memory.describe_cache(need)}"
        elif need:
            then = sampling(other, model, rates)
            share = then.seconds / now.seconds - 1
            sure = "" if then.low > now.high or then.high < now.low else ", within the margin of error"
            yield (
                f"{_INDENT}{settings} would sample in {then.seconds:,.0f} s ({then.low:,.0f} to {then.high:,.0f}): "
                f"{abs(share):.0%} {'faster' if share < 0 else 'slower'}{sure};"
            )
            yield f"{_INDENT}  its cache has {gpu_memory.describe_cache(need)}"
            several = f"{1e6 * ALL_REDUCE:.0f} us per all-reduce and {1e3 * RAY:.0f} ms of Ray per pass"
    if several:
        yield f"{_INDENT}  for an engine of several GPUs, assumes {several}"


def _other_split(plan: Plan, config: Config, judge: RunJudge, rates: Rates) -> Iterator[str]:
    """Yield how fast a step is if engines and actor share the GPUs with one copy of the model, or if they do not."""
    other = splits.find_other(config)
    if other is None or plan.architecture is None or not plan.architecture.mxfp4:
        return
    settings = splits.describe_settings(other)
    if problem := next(splits.find_problems(other), None):
        yield f"{_INDENT}{settings} is not possible: {problem.what}"
        return
    (low, then, high), (least, now, most) = (
        [_time_step(plan, split, judge, rates, which) for which in ("low", "seconds", "high")]
        for split in (other, config)
    )
    sure = "" if low > most or high < least else ", within the margin of error"
    share = then / now - 1
    yield (
        f"{_INDENT}{settings} would take {then:,.0f} s per step: {abs(share):.0%} "
        f"{'faster' if share < 0 else 'slower'}{sure};"
    )
    if not other.args.colocate_all_models:
        ahead = seconds_of_step(plan, _switch_pipeline(other), judge, rates)
        yield f"{_INDENT}  with PIPELINE=1 also, {ahead:,.0f} s"
    yield f"{_INDENT}  {splits.describe_memory(other)}"


def seconds_of_step(plan: Plan, config: Config, judge: RunJudge, rates: Rates) -> float:
    """Return the seconds of a step, if every rollout has the longest length."""
    return _time_step(plan, config, judge, rates, "seconds")


def _time_step(plan: Plan, config: Config, judge: RunJudge, rates: Rates, which: str) -> float:
    return _step(list(phases(plan, config, judge, rates)), which, config.args.pipeline)
