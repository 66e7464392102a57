"""The metrics of one global step, computed on OpenRLHF's controller from all rollouts and all ranks' notes.

OpenRLHF averages its own metrics over micro-batches. Here every metric is computed once, over all tokens or rollouts of
the step. It therefore does not depend on how they were split into micro-batches and ranks.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from grpo.metrics.sample_metrics import experience_metrics, read_columns
from grpo.metrics.token_recorder import MicroBatch
from grpo.metrics.update_metrics import (
    engine_metrics,
    gradient_metrics,
    log_probs_by_sample,
    policy_metrics,
)
from grpo.rollout.rows import Batch, Sample, get_branches, group_rows
from grpo.stack.upstream import Tokenizer

logger = logging.getLogger("openrlhf.grpo.step_metrics")

OF_TOKENS = {"kl", "logprobs_diff"}  # means over the tokens of each rollout
SHOWN = 3  # unlikely tokens of a rollout
CONTEXT = 24  # tokens before an unlikely one
AFTER = 6


def merge(status: dict[str, Any], result: dict[str, Any]) -> None:
    """Add one rank's ``fit`` result to the step's status, and its notes to those of the others."""
    notes = status.get("micro_batches", []) + result.get("micro_batches", [])
    most = max(status.get("device_memory", 0.0), result.get("device_memory", 0.0))
    errors = status.get("metric_errors", 0.0) + result.get("metric_errors", 0.0)
    status.update(result, micro_batches=notes, device_memory=most, metric_errors=errors)


def add_step_metrics(
    status: dict[str, Any],
    experiences: Sequence[Batch],
    samples: Sequence[Sample],
    tokenizer: Tokenizer | None,
) -> None:
    """Add the metrics of a step (:mod:`grpo.metrics.metric_schema`) to its status, and their details to the rollouts.

    Args:
        status: the result of ``ppo_train``, all ranks merged; the notes are removed from it.
        experiences: the batches that were trained on, see :func:`grpo.metrics.sample_metrics.experience_metrics`.
        samples: the same as ``Experience`` of one rollout each, in rollout order. Each gets ``details``: what is known
            about it alone.
    """
    micro_batches: list[MicroBatch] = status.pop("micro_batches", [])
    engine = dict(_split_by_sample(experiences, "rollout_log_probs"))
    trainer = log_probs_by_sample(micro_batches)
    parts: list[Callable[[], dict[str, float] | None]] = [
        lambda: _leave_out_unknown(status, experiences),
        lambda: _means(experiences),
        lambda: experience_metrics(experiences, tokenizer),
        lambda: policy_metrics(micro_batches),
        lambda: gradient_metrics(status.get("grad_norms", [])),
        lambda: engine_metrics(trainer, engine),
        lambda: _add_details(samples, experiences, micro_batches, trainer, engine),
        lambda: _add_tokens(samples, trainer, tokenizer),
    ]
    for part in parts:
        try:
            status.update(part() or {})
        except Exception:  # the policy has been updated: a missing metric must not end the run
            status["metric_errors"] = status.get("metric_errors", 0.0) + 1
            logger.exception("some metrics of this step are missing")


def _add_tokens(samples: Sequence[Sample], trainer: dict[int, torch.Tensor], tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        for index, sample in enumerate(samples):
            sample.details["least_likely_tokens"] = least_likely(sample, trainer.get(index), tokenizer.decode)


def _split_by_sample(experiences: Sequence[Batch], name: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each rollout's index and its part of a ``[B, A]`` tensor at its sampled tokens, if it has one."""
    for experience in experiences:
        if getattr(experience, name) is None:
            continue
        values, mask = getattr(experience, name), experience.action_mask.bool()
        for index, rows in zip(experience.index, group_rows(experience), strict=False):  # the rollouts come first
            yield index, torch.cat([values[row][mask[row]] for row in rows])


def _leave_out_unknown(status: dict[str, Any], experiences: Sequence[Batch]) -> None:
    """Remove the mean reward of a step in which no rollout has a reward: the placeholder is 0."""
    missing = [experience.info.get("reward_missing") for experience in experiences]
    if all(part is not None and part.all() for part in missing):
        for numbers in (status, *(experience.info for experience in experiences)):
            numbers.pop("reward", None)
            numbers.pop("return", None)


def _means(experiences: Sequence[Batch]) -> dict[str, float]:
    """Return means: over all rollouts for values that every rollout logs, over all tokens for values per token."""
    columns = read_columns(experiences)
    means = {name: float(column.mean()) for name, column in columns.items()}
    masks = [experience.action_mask[: len(experience.prompts)] for experience in experiences]
    lengths = torch.cat([mask.bool().sum(-1) for mask in masks]).double()
    for name in OF_TOKENS & columns.keys():
        if lengths.any():
            means[name] = float((columns[name] * lengths).sum() / lengths.sum())
    return means


def _add_details(
    samples: Sequence[Sample],
    experiences: Sequence[Batch],
    micro_batches: Sequence[MicroBatch],
    trainer: dict[int, torch.Tensor],
    engine: dict[int, torch.Tensor],
) -> None:
    """Give each rollout ``details``: its advantage, and the trainer's and the engine's view of its tokens (nat)."""
    advantages = dict(_split_by_sample(experiences, "advantages"))
    losses: dict[int, float] = {}  # the largest over several passes
    for batch in micro_batches:
        for index in batch.samples:
            losses[index] = max(losses.get(index, 0.0), batch.loss, key=abs)
    for index, sample in enumerate(samples):
        details: dict[str, Any] = {}
        if len(advantages.get(index, ())):
            details["advantage"] = float(advantages[index].double().mean())
        if index in losses:
            details["micro_batch_loss"] = losses[index]
        if len(trainer.get(index, ())):
            details["surprisal"] = -float(trainer[index].double().mean())
            details["lowest_log_prob"] = float(trainer[index].min())
            details.update(engine_metrics({index: trainer[index]}, engine))
        sample.details = details


def least_likely(
    sample: Sample, trainer: torch.Tensor | None, decode: Callable[[Sequence[int]], str]
) -> list[dict[str, Any]]:
    """Return the SHOWN sampled tokens of a rollout that the engine or the trainer found least likely, in this order.

    A token with an engine probability of 1e-6 was hardly sampled from that policy. A wrong template, an environment
    token under the action mask, stale weights or a numeric fault shows here first.

    Args:
        sample: without the engine's log-probs the result is empty.
        trainer: the trainer's log-probs of the rollout's sampled tokens, ``[T]``, the earliest row first; None for one
            that is not trained on.

    Returns:
        ``position`` (in the sequence), ``before``, ``token``, ``after`` as text, ``engine`` and ``trainer`` (log-probs,
        nat; ``trainer`` may be None), and ``branch``: the index among the rollout's rows, earliest first.
    """
    rows = [*get_branches(sample), sample]
    lengths = [int(row.action_mask.bool().sum()) for row in rows]
    if sample.rollout_log_probs is None or (trainer is not None and len(trainer) != sum(lengths)):
        return []
    parts = [None] * len(rows) if trainer is None else trainer.split(lengths)
    found = []
    for branch, (row, ours) in enumerate(zip(rows, parts, strict=True)):
        assert row.rollout_log_probs is not None  # all rows of a rollout have them, or none
        tokens, sampled = row.sequences[0].tolist(), row.action_mask[0].nonzero().flatten()
        engine = row.rollout_log_probs[0][sampled]
        lowest = engine if ours is None else torch.minimum(engine, ours.to(engine))
        for at in lowest.argsort(stable=True)[:SHOWN].tolist():
            position = int(sampled[at]) + 1  # column t predicts token t + 1
            token = {
                "position": position,
                "before": decode(tokens[max(0, position - CONTEXT) : position]),
                "token": decode([tokens[position]]),
                "after": decode(tokens[position + 1 : position + 1 + AFTER]),
                "engine": float(engine[at]),
                "trainer": None if ours is None else float(ours[at]),
                "branch": branch,
            }
            found.append((float(lowest[at]), token))
    return [token for _, token in sorted(found, key=lambda pair: pair[0])[:SHOWN]]
