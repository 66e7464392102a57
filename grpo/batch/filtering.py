"""Which groups a step draws, and which of them it trains on: a window of the solve rate, refilled up to a bound.

A group outside the window is left out, and another prompt drawn for it. Which prompts a step draws, and which groups it
keeps, follow from the order of the prompts and from the seeds, not from which engine is faster: a step repeated after a
resume has the same groups.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

from grpo.batch import unfinished
from grpo.batch.retirement import Retirement
from grpo.batch.rewards import no_reward
from grpo.rollout import seeds
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.trainer import SamplesGenerator

logger = logging.getLogger("openrlhf.grpo.filtering")


class StepGroups:
    """The groups of one global step, over all its batches: a step may begin in one episode and end in the next.

    Attributes:
        step: the global step.
        resting: the prompts that it does not draw.
        drawn: prompt and solve rate of each finished group, see :func:`solve_rate`.
        rejected: the samples of the groups outside the window, and their distances from it.
        accepted: the samples of the groups inside it, from an episode that ended before the batch was full.
        filled: how many rejected groups the step trains on, because it may draw no more.
    """

    def __init__(self, step: int, resting: frozenset[str] = frozenset()) -> None:
        self.step, self.resting = step, resting
        self.drawn: list[tuple[str, float]] = []
        self.rejected: list[tuple[float, list[Sample]]] = []
        self.accepted: list[Sample] = []
        self.filled = 0


def begin_step(generator: SamplesGenerator, step: int) -> None:
    """Prepare a global step."""
    seeds.begin_stage(generator, f"train {step}")
    generator.groups = StepGroups(step, _resting(generator, step))


def retirement_of(generator: SamplesGenerator) -> Retirement:
    """Return the problems that rest; the first call makes them."""
    if not hasattr(generator, "retirement"):
        restore(generator, None)
    mine: Retirement = generator.retirement
    return mine


def state(generator: SamplesGenerator) -> dict[str, Any]:
    """Return what a checkpoint keeps of the groups so far, as plain values."""
    return generator.retirement.state()


def restore(generator: SamplesGenerator, saved: dict[str, Any] | None) -> None:
    """Continue from :func:`state`; None at the start of a run, and for a checkpoint without it."""
    generator.retirement = Retirement(generator.args.retire_after, generator.args.retire_for)
    if saved is not None:
        generator.retirement.restore(saved)


def plain(groups: StepGroups) -> dict[str, Any]:
    """Return the groups of a sampled batch as plain values: what :func:`finish_step` reads."""
    return {"step": groups.step, "resting": sorted(groups.resting), "drawn": groups.drawn, "filled": groups.filled}


def groups_of(state: dict[str, Any]) -> StepGroups:
    """Return the groups of :func:`plain`."""
    groups = StepGroups(state["step"], frozenset(state["resting"]))
    groups.drawn, groups.filled = state["drawn"], state["filled"]
    return groups


def _resting(generator: SamplesGenerator, step: int) -> frozenset[str]:
    if generator.args.retire_after is None:
        return frozenset()
    prompts = generator.prompts_dataloader.dataset.prompts
    return generator.retirement.resting(step, prompts, in_play=generator.args.rollout_batch_size)


def begin_batch(
    generator: SamplesGenerator, num_prompts: int, prompts: Iterator[Any], dynamic_filtering: bool
) -> tuple[list[Sample], int, Iterator[Any]]:
    """Return the samples that the batch has already, how many prompts to draw at first, and the prompts to draw from.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_step` or, in an evaluation, ``begin_stage``.
        num_prompts: groups of a full batch.
        prompts: the iterator of OpenRLHF's prompt loader.
    """
    generator.unscored = []
    if not _is_training(generator):
        return [], num_prompts, prompts
    groups = generator.groups
    spare, running = unfinished.begin_batch(generator)
    carried, groups.accepted = [*groups.accepted, *spare], []
    ready = len(carried) // generator.args.n_samples_per_prompt
    missing = max(0, num_prompts + generator.args.partial_rollouts - ready - running)
    left = _left(generator) if dynamic_filtering else missing
    return carried, min(missing, left), _drawable(prompts, left, groups.resting)


def _is_training(generator: SamplesGenerator) -> bool:
    return generator.stage.startswith("train")


def _left(generator: SamplesGenerator) -> int:
    """Return how many prompts the step may still draw."""
    args = generator.args
    return args.rollout_batch_size * args.dynamic_filtering_batches - generator.drawn.total()


def _drawable(prompts: Iterator[Any], most: int, resting: frozenset[str]) -> Iterator[Any]:
    """Yield up to `most` items of OpenRLHF's prompt loader, without the resting ones."""
    for _ in range(most):
        for item in prompts:
            if item[1][0] not in resting:  # a source, a prompt and a label, in lists of one
                yield item
                break
        else:
            return


def kept(generator: SamplesGenerator, group: list[Sample], dynamic_filtering: bool) -> list[Sample]:
    """Return the samples of a finished group, or [] if dynamic filtering leaves it out.

    Raises:
        UserError: if a whole batch of consecutive groups came without a score. An error that hits every rollout would
            silently use up all prompts.
    """
    if not _is_training(generator):
        return group
    unfinished.landed(generator, group)
    rate = solve_rate(group)
    generator.groups.drawn.append((group[0].prompts[0], rate))
    if not dynamic_filtering or group[0].scores is None:  # a reward model scores them later
        return group
    generator.unscored = [*generator.unscored, *group] if math.isnan(rate) else []
    if len(generator.unscored) >= generator.args.rollout_batch_size * generator.args.n_samples_per_prompt:
        raise no_reward(generator.unscored)
    low, high = generator.args.dynamic_filtering_reward_range
    if low < rate < high:
        return group
    distance = math.inf if math.isnan(rate) else max(low - rate, rate - high)
    generator.groups.rejected.append((distance, group))
    logger.info("left out: a group with a mean score of %.3g, not between %g and %g", rate, low, high)
    return []


def solve_rate(group: Sequence[Sample]) -> float:
    """Return the mean score of a group's samples that have one; NaN if none has."""
    scores = [float(score[0]) for sample in group if (score := sample.scores) is not None and score.isfinite().all()]
    return math.fsum(scores) / len(scores) if scores else math.nan


def end_batch(generator: SamplesGenerator, accepted: list[Sample], exhausted: bool) -> tuple[list[Sample], bool]:
    """Return the samples of a batch, and whether the episode ran out of prompts before the batch was full.

    - If the prompts ran out, the accepted groups wait for the first prompts of the next episode. They are still
      on-policy: no training step lies in between.
    - If the step may draw no more, the rejected groups nearest to the window fill the batch.

    Args:
        accepted: those that :func:`kept` returned, and those of :func:`begin_batch`.
    """
    if not _is_training(generator):
        return accepted, exhausted
    groups, place, args = generator.groups, seeds.places(generator), generator.args
    accepted = unfinished.batch_of(generator, accepted)
    missing = args.rollout_batch_size - len(accepted) // args.n_samples_per_prompt
    if missing and args.dynamic_filtering and _left(generator) <= 0:
        nearest = sorted(groups.rejected, key=lambda one: (one[0], place(one[1][0])))[:missing]
        groups.filled = missing
        return [*accepted, *(sample for _, group in nearest for sample in group)], False
    if missing:
        groups.accepted = accepted
        return [], True
    return accepted, False  # the loop drops the batch of an exhausted loader; the next draw finds that it is


def pass_rate(generator: SamplesGenerator) -> float:
    """Return the groups of the step inside the window, in percent of those drawn."""
    groups = generator.groups
    return 100 * (1 - len(groups.rejected) / len(groups.drawn)) if groups.drawn else 0.0


def finish_step(generator: SamplesGenerator, groups: StepGroups) -> dict[str, float]:
    """Note the solve rates of a step for the retirement of problems; return the step's metrics of its groups."""
    args = generator.args
    metrics = _window_metrics(args, groups) if args.dynamic_filtering else {}
    if args.retire_after is not None:
        returned = sum(generator.retirement.was_away(prompt) for prompt in {prompt for prompt, _ in groups.drawn})
        metrics |= {"problems_resting": float(len(groups.resting)), "problems_returned": float(returned)}
        generator.retirement.note(groups.step, groups.drawn)
    return metrics


def _window_metrics(args: Arguments, groups: StepGroups) -> dict[str, float]:
    low, high = args.dynamic_filtering_reward_range
    rates = [rate for _, rate in groups.drawn if not math.isnan(rate)]
    metrics = {"groups_drawn": float(len(groups.drawn)), "groups_filled": float(groups.filled)}
    if rates:
        metrics["score_drawn"] = math.fsum(rates) / len(rates)
        metrics["groups_too_hard"] = sum(rate <= low for rate in rates) / len(groups.drawn)
        metrics["groups_too_easy"] = sum(rate >= high for rate in rates) / len(groups.drawn)
    return metrics
