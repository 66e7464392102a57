"""What dynamic filtering keeps of a group, and what an unfinished batch leaves to the next."""

import math
from collections.abc import Sequence
from typing import Any

import ray

from grpo.batch.rewards import RewardError, _no_reward_message


def known_scores(generator: Any, group: Sequence[Any]) -> list[float]:
    """Return the scores of the samples of a group that have one, by which dynamic filtering judges it; NaN for none.

    A group without any is left out, and another prompt drawn: an error that hits every rollout would use up all prompts
    in silence.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_batch`.
        group: ``Experience`` of one sample each.

    Raises:
        RewardError: where as many groups as a batch has come in a row without a score.
    """
    scores = [float(sample.scores[0]) for sample in group if sample.scores.isfinite().all()]
    if scores:
        generator.unscored.clear()
        return scores
    generator.unscored += group
    if len(generator.unscored) >= generator.args.rollout_batch_size * generator.args.n_samples_per_prompt:
        raise RewardError(_no_reward_message(generator.unscored))
    return [math.nan]


def begin_batch(generator: Any, num_prompts: int, dynamic_filtering: bool) -> tuple[list[Any], int]:
    """Return the samples that :func:`carry_over` kept, and how many prompts are to be drawn beside them."""
    carried: list[Any] = []
    if dynamic_filtering:
        carried, generator.carried_samples = getattr(generator, "carried_samples", []), []
    generator.unscored = []
    return carried, num_prompts - len(carried) // generator.args.n_samples_per_prompt


def carry_over(generator: Any, accepted: list[Any], pending: list[Any]) -> None:
    """Keep samples of an unfinished batch for the next rollout, and cancel what is still running.

    The prompt loader ran out while dynamic filtering was filling a batch. Stock drops what was accepted; no training
    step lies between this rollout and the next, so the samples are still on-policy there.
    """
    for reference in pending:
        ray.cancel(reference)
    generator.carried_samples = accepted
