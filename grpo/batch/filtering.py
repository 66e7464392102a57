"""Which groups dynamic filtering keeps, and what an unfinished batch leaves to the next."""

import math
from collections.abc import Sequence

import ray

from grpo.batch.rewards import no_reward
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.trainer import SamplesGenerator


def known_scores(generator: SamplesGenerator, group: Sequence[Sample]) -> list[float]:
    """Return the scores by which dynamic filtering judges a group, without missing ones; [NaN] if all are missing.

    A group without scores is dropped, and another prompt drawn. An error that hits every rollout would silently use up
    all prompts.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``, after :func:`begin_batch`.
        group: ``Experience`` of one sample each.

    Raises:
        UserError: if a whole batch of consecutive groups came without a score.
    """
    scores = [float(score[0]) for sample in group if (score := sample.scores) is not None and score.isfinite().all()]
    if scores:
        generator.unscored.clear()
        return scores
    generator.unscored += group
    if len(generator.unscored) >= generator.args.rollout_batch_size * generator.args.n_samples_per_prompt:
        raise no_reward(generator.unscored)
    return [math.nan]


def begin_batch(generator: SamplesGenerator, num_prompts: int, dynamic_filtering: bool) -> tuple[list[Sample], int]:
    """Return the samples that :func:`carry_over` kept, and how many more prompts to draw."""
    carried: list[Sample] = []
    if dynamic_filtering:
        carried, generator.carried_samples = getattr(generator, "carried_samples", []), []
    generator.unscored = []
    return carried, num_prompts - len(carried) // generator.args.n_samples_per_prompt


def carry_over(generator: SamplesGenerator, accepted: list[Sample], pending: list[ray.ObjectRef]) -> None:
    """Keep samples of an unfinished batch for the next rollout, and cancel running ones.

    The prompt loader ran out while dynamic filtering was filling a batch. Stock OpenRLHF drops the accepted samples.
    They are still on-policy in the next rollout: no training step lies in between.
    """
    for reference in pending:
        ray.cancel(reference)
    generator.carried_samples = accepted
