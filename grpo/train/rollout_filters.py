"""Which groups a step draws, and which of them it trains on: a window of the solve rate, refilled up to a bound.

A group outside the window is left out, and another prompt drawn for it. Which prompts a step draws, and which groups it
keeps, follow from the order of the prompts and from the seeds, not from which engine is faster: a step repeated after a
resume has the same groups.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from grpo.rollout import routing
from grpo.rollout.engine_calls import EngineCalls
from grpo.rollout.rows import Sample
from grpo.rollout.stage import Stage
from grpo.stack.upstream.arguments import Arguments
from grpo.train.rewards import explain_missing_rewards

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

logger = logging.getLogger("openrlhf.grpo.step")


@dataclass
class StepGroups:
    """What became of the groups of one global step, over all its episodes.

    Attributes:
        step: the global step.
        drawn: prompt and solve rate of each finished group, see :func:`solve_rate`.
        filled: how many rejected groups the step trains on, because it may draw no more.
    """

    step: int
    drawn: list[tuple[str, float]] = field(default_factory=list)
    filled: int = 0

    def state(self) -> dict[str, Any]:
        """Return the groups as plain values."""
        return dict(vars(self))


class Step(Stage):
    """The sampling of one global step, over all its episodes: it may begin in one and end in the next.

    Args:
        args: OpenRLHF's.
        number: the global step.
        engines: answer the prompts.
        records_routing: whether the engines record their choice of experts.
        max_new_tokens: the limit on response length.
    """

    def __init__(
        self,
        args: Arguments,
        number: int,
        engines: EngineCalls,
        *,
        records_routing: bool = False,
        max_new_tokens: int = 0,
    ) -> None:
        super().__init__(args, f"train {number}", engines)
        self.groups, self.max_new_tokens = StepGroups(number), max_new_tokens
        self._records_routing = records_routing
        self._rejected: list[tuple[float, list[Sample]]] = []  # groups outside the window, by their distance from it
        self._accepted: list[Sample] = []  # those inside it, from an episode that ended before the batch was full
        self._unscored: list[Sample] = []  # of consecutive groups without a score

    def seed_params(self, params: "SamplingParams", prompt: str) -> "SamplingParams":
        """Return as :meth:`Stage.seed_params`; the engine records what training reads."""
        mine = super().seed_params(params, prompt)
        return routing.mark_recorded(mine) if self._records_routing else mine

    def begin(self, prompts: Iterator[Any], groups: int) -> tuple[list[Sample], int, Iterator[Any]]:
        """Return as :meth:`Stage.begin`: a step may draw a limited number of prompts."""
        carried, self._accepted, self._unscored = self._accepted, [], []
        missing = groups - len(carried) // self.args.n_samples_per_prompt
        left = self._count_left() if self.args.dynamic_filtering else missing
        return carried, min(missing, left), islice(prompts, left)

    def _count_left(self) -> int:
        """Return how many prompts the step may still draw."""
        return self.args.rollout_batch_size * self.args.dynamic_filtering_batches - self.drawn.total()

    def keep(self, group: list[Sample]) -> list[Sample]:
        """Return the rollouts of a finished group, or [] if dynamic filtering leaves it out.

        Raises:
            UserError: if a whole batch of consecutive groups came without a score. An error that hits every rollout
                would silently use up all prompts.
        """
        rate = solve_rate(group)
        self.groups.drawn.append((group[0].prompts[0], rate))
        if not self.args.dynamic_filtering:
            return group
        self._unscored = [*self._unscored, *group] if math.isnan(rate) else []
        if len(self._unscored) >= self.args.rollout_batch_size * self.args.n_samples_per_prompt:
            raise explain_missing_rewards(self._unscored)
        low, high = self.args.dynamic_filtering_reward_range
        if low < rate < high:
            return group
        distance = math.inf if math.isnan(rate) else max(low - rate, rate - high)
        self._rejected.append((distance, group))
        logger.info("left out: a group with a mean score of %.3g, not between %g and %g", rate, low, high)
        return []

    def end(self, accepted: list[Sample], is_exhausted: bool) -> tuple[list[Sample], bool]:
        """Return the rollouts of the batch, and whether the episode ran out of prompts before it was full.

        - If the prompts ran out, the accepted groups wait for the first prompts of the next episode. They are still
          on-policy: no training step lies in between.
        - If the step may draw no more, the rejected groups nearest to the window fill the batch.
        """
        missing = self.args.rollout_batch_size - len(accepted) // self.args.n_samples_per_prompt
        if missing and self.args.dynamic_filtering and self._count_left() <= 0:
            place = self.make_sort_key()
            nearest = sorted(self._rejected, key=lambda one: (one[0], place(one[1][0])))[:missing]
            self.groups.filled = missing
            return [*accepted, *(sample for _, group in nearest for sample in group)], False
        if missing:
            self._accepted = accepted
            return [], True
        return accepted, False

    def pass_rate(self) -> float:
        """Return the groups inside the window, in percent of those drawn."""
        drawn = len(self.groups.drawn)
        return 100 * (1 - len(self._rejected) / drawn) if drawn else 0.0


def solve_rate(group: Sequence[Sample]) -> float:
    """Return the mean score of a group's rollouts that have one; NaN if none has."""
    scores = [float(score[0]) for sample in group if (score := sample.scores) is not None and score.isfinite().all()]
    return math.fsum(scores) / len(scores) if scores else math.nan


def measure(args: Arguments, groups: StepGroups) -> dict[str, float]:
    """Return the metrics of a step's groups; {} without DYNAMIC_FILTERING."""
    if not args.dynamic_filtering:
        return {}
    low, high = args.dynamic_filtering_reward_range
    rates = [rate for _, rate in groups.drawn if not math.isnan(rate)]
    metrics = {"groups_drawn": float(len(groups.drawn)), "groups_filled": float(groups.filled)}
    if rates:
        metrics["score_drawn"] = math.fsum(rates) / len(rates)
        metrics["groups_too_hard"] = sum(rate <= low for rate in rates) / len(groups.drawn)
        metrics["groups_too_easy"] = sum(rate >= high for rate in rates) / len(groups.drawn)
    return metrics
