"""Which groups a step draws, and which of them it trains on: a window of the solve rate, refilled up to a bound.

A group outside the window is left out, and another prompt drawn for it. Which prompts a step draws, and which groups it
keeps, follow from the order of the prompts and from the seeds, not from which engine is faster: a step repeated after a
resume has the same groups.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grpo.rollout.rows import Sample
from grpo.rollout.stage import Stage, mark_recorded
from grpo.stack.upstream import Arguments
from grpo.train.rewards import explain_missing_rewards

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

logger = logging.getLogger("openrlhf.grpo.rollout_filters")


@dataclass
class StepGroups:
    """What became of the groups of one global step, over all its episodes. A checkpoint holds them.

    Attributes:
        drawn: prompt and solve rate of each finished group, see :func:`compute_solve_rate`.
        filled: how many rejected groups the step trains on, because it may draw no more.
    """

    drawn: list[tuple[str, float]] = field(default_factory=list)
    filled: int = 0


@dataclass(frozen=True)
class Drawn:
    """What a step has drawn from one episode.

    Attributes:
        rollouts: of the batch; [] if the episode ended before it was full.
        prompts: drawn from this episode.
        is_over: whether the episode ended before the batch was full.
    """

    rollouts: list[Sample]
    prompts: int
    is_over: bool


class Step(Stage):
    """The sampling of one global step, over all its episodes: it may begin in one and end in the next.

    Args:
        number: the global step.
        records_routing: whether the engines record their choice of experts.
    """

    def __init__(self, args: Arguments, number: int, *, records_routing: bool = False, max_new_tokens: int = 0) -> None:
        super().__init__(args, f"train {number}")
        self.groups, self.max_new_tokens = StepGroups(), max_new_tokens
        self._records_routing = records_routing
        self._rejected: list[tuple[float, list[Sample]]] = []  # groups outside the window, by their distance from it
        self._unscored: list[Sample] = []  # of consecutive groups without a score

    def seed_params(self, params: "SamplingParams", prompt: str) -> "SamplingParams":
        """Return as :meth:`Stage.seed_params`; the engine records what training reads."""
        mine = super().seed_params(params, prompt)
        return mark_recorded(mine) if self._records_routing else mine

    def count_allowed(self) -> int:
        """Return how many prompts the step may still draw."""
        batches = self.args.dynamic_filtering_batches if self.args.dynamic_filtering else 1
        return int(self.args.rollout_batch_size * batches - self.drawn.total())

    def add(self, group: list[Sample]) -> None:
        """Add a finished group to the batch, unless dynamic filtering leaves it out.

        Raises:
            UserError: if a whole batch of consecutive groups came without a score. An error that hits every rollout
                would silently use up all prompts.
        """
        rate = compute_solve_rate(group)
        self.groups.drawn.append((group[0].prompts[0], rate))
        if not self.args.dynamic_filtering:
            super().add(group)
            return
        self._unscored = [*self._unscored, *group] if math.isnan(rate) else []
        if len(self._unscored) >= self.args.rollout_batch_size * self.args.n_samples_per_prompt:
            raise explain_missing_rewards(self._unscored)
        low, high = self.args.dynamic_filtering_reward_range
        if low < rate < high:  # False for NaN
            super().add(group)
            return
        # The farthest are those without a score, which fill a batch only if nothing else can.
        distance = math.inf if math.isnan(rate) else max(low - rate, rate - high)
        self._rejected.append((distance, group))
        logger.info("left out: a group with a mean score of %.3g, not between %g and %g", rate, low, high)

    def finish(self, prompts: int) -> Drawn:
        """Return what the step has drawn from an episode.

        - If the prompts ran out, the groups wait for the first prompts of the next episode. They are still on-policy:
          no training step lies in between.
        - If the step may draw no more, the rejected groups nearest to the window fill the batch.

        Args:
            prompts: drawn from this episode.
        """
        missing = self.args.rollout_batch_size - len(self.kept)
        if missing and self.args.dynamic_filtering and not self.count_allowed():
            place = self.rank_groups()
            nearest = sorted(self._rejected, key=lambda one: (one[0], place(one[1])))[:missing]
            self.kept += [group for _, group in nearest]
            self.groups.filled, missing = missing, 0
        rollouts = [] if missing else self.list_rollouts()
        return Drawn(rollouts, prompts, is_over=missing > 0)


def compute_solve_rate(group: Sequence[Sample]) -> float:
    """Return the mean score of a group's rollouts that have one; NaN if none has."""
    scores = [float(score[0]) for sample in group if (score := sample.scores) is not None and score.isfinite().all()]
    return math.fsum(scores) / len(scores) if scores else math.nan


def compute_metrics(args: Arguments, groups: StepGroups) -> dict[str, float]:
    """Return the metrics of a step's groups; {} without --dynamic_filtering."""
    if not args.dynamic_filtering:
        return {}
    low, high = args.dynamic_filtering_reward_range
    number = len(groups.drawn)
    rates = [rate for _, rate in groups.drawn if not math.isnan(rate)]
    outside = number - sum(low < rate < high for rate in rates)  # also those without a score
    metrics = {
        "dynamic_filtering_pass_rate": 100 * (1 - outside / number),  # OpenRLHF's metric, in percent
        "groups_drawn": float(number),
        "groups_filled": float(groups.filled),
    }
    if rates:
        metrics["score_drawn"] = math.fsum(rates) / len(rates)
        metrics["groups_too_hard"] = sum(rate <= low for rate in rates) / number
        metrics["groups_too_easy"] = sum(rate >= high for rate in rates) / number
    return metrics
