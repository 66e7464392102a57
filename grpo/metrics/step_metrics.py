"""The metrics of one global step, computed on OpenRLHF's controller from all rollouts and all ranks' notes.

OpenRLHF averages its own metrics over micro-batches. Here every metric is computed once, over all tokens or rollouts of
the step. It therefore does not depend on how they were split into micro-batches and ranks.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from grpo.metrics.rollout_metrics import at_sampled, read_column, rollout_metrics
from grpo.metrics.token_recorder import MicroBatch
from grpo.rollout.rows import Batch, Sample, get_branches
from grpo.stack.upstream import Tokenizer

logger = logging.getLogger("openrlhf.grpo.step_metrics")

IMPROBABLE = math.log(1e-4)
OF_TOKENS = {"kl", "logprobs_diff"}  # means over the tokens of each rollout
SHOWN = 3  # unlikely tokens of a rollout
CONTEXT = 24  # tokens before an unlikely one
AFTER = 6

OfRollouts = Mapping[int, torch.Tensor]  # log-probs of sampled tokens, [T] by rollout


def merge(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of a step: what all ranks report of its update (:meth:`ActorMetrics.pop`), as one."""
    status = {name: value for result in results for name, value in result.items()}  # most are equal on all ranks
    return status | {
        "micro_batches": [note for result in results for note in result.get("micro_batches", ())],
        "device_memory": max(result.get("device_memory", 0.0) for result in results),
        "metric_errors": sum(result.get("metric_errors", 0.0) for result in results),
    }


def add_step_metrics(
    status: dict[str, Any], batches: Sequence[Batch], samples: Sequence[Sample], tokenizer: Tokenizer | None
) -> None:
    """Add the metrics of a step (:mod:`grpo.metrics.metric_schema`) to its status, and their details to the rollouts.

    Args:
        status: of :func:`merge`; the notes are removed from it.
        batches: what was trained on, with advantages.
        samples: the same rollouts in their order. Each gets ``details``: what is known about it alone.
    """
    notes: list[MicroBatch] = status.pop("micro_batches", [])
    engine, trainer = at_sampled(batches, "rollout_log_probs"), log_probs_by_rollout(notes)
    parts: list[Callable[[], dict[str, float] | None]] = [
        lambda: _leave_out_unknown(status, batches),
        lambda: _means(batches),
        lambda: rollout_metrics(batches, tokenizer),
        lambda: policy_metrics(notes),
        lambda: gradient_metrics(status.get("grad_norms", [])),
        lambda: engine_metrics(trainer, engine),
        lambda: _add_details(samples, batches, notes, trainer, engine, tokenizer),
    ]
    for part in parts:
        try:
            status.update(part() or {})
        except Exception:  # the policy has been updated: a missing metric must not end the run
            status["metric_errors"] = status.get("metric_errors", 0.0) + 1
            logger.exception("some metrics of this step are missing")


def _leave_out_unknown(status: dict[str, Any], batches: Sequence[Batch]) -> None:
    """Remove the mean reward of a step in which no rollout has a reward: the placeholder is 0."""
    missing = read_column(batches, "reward_missing")
    if missing is not None and missing.all():
        for numbers in (status, *(batch.info for batch in batches)):
            numbers.pop("reward", None)
            numbers.pop("return", None)


def _means(batches: Sequence[Batch]) -> dict[str, float]:
    """Return means: over all rollouts for values that every rollout logs, over all tokens for values per token."""
    names = set.intersection(*(set(batch.info) for batch in batches))
    columns = {name: column for name in sorted(names) if (column := read_column(batches, name)) is not None}
    means = {name: float(column.mean()) for name, column in columns.items()}
    lengths = torch.cat([batch.action_mask[: len(batch.prompts)].bool().sum(-1) for batch in batches]).double()
    for name in OF_TOKENS & columns.keys():
        if lengths.any():
            means[name] = float((columns[name] * lengths).sum() / lengths.sum())
    return means


def policy_metrics(notes: Sequence[MicroBatch]) -> dict[str, float]:
    """Return divergence, clipping, entropy and losses of a step; {} if no token was trained on."""
    if not sum(note.log_ratios.numel() for note in notes):
        return {}
    log_ratios, entropy, unallocated = (
        torch.cat([getattr(note, name) for note in notes]).double() for name in ("log_ratios", "entropy", "unallocated")
    )
    losses = torch.tensor([note.loss for note in notes], dtype=torch.float64).abs()
    # A group whose rollouts all got the same reward has zero loss, and there may be many of them.
    usual = losses[torch.tensor([bool((note.advantages.abs() > 1e-6).any()) for note in notes])]
    metrics = {
        "ppo_kl": -log_ratios.mean(),
        "policy_loss_max": losses.max(),
        "entropy": entropy.mean(),
        "unallocated_mass": unallocated.mean(),
    }
    if len(usual) and usual.quantile(0.5) > 0:
        metrics["policy_loss_spike"] = losses.max() / usual.quantile(0.5)
    for name in {name: None for note in notes for name in note.of_loss}:
        metrics[name] = torch.cat([note.of_loss[name] for note in notes]).double().mean()
    differing, replayed = (sum(counts) for counts in zip(*(note.routing for note in notes), strict=True))
    if replayed:
        metrics["routing_differs"] = differing / replayed
    if "clip_ratio_low" in metrics:
        metrics["ppo_clip_ratio"] = metrics["clip_ratio_low"] + metrics["clip_ratio_high"]
    return {name: float(value) for name, value in metrics.items()}


def gradient_metrics(norms: Sequence[float]) -> dict[str, float]:
    """Return mean, maximum and number of a step's gradient norms; {} if no optimizer step was made."""
    if not norms:
        return {}
    return {"grad_norm": sum(norms) / len(norms), "grad_norm_max": max(norms), "optimizer_steps": float(len(norms))}


def engine_metrics(trainer: OfRollouts, engine: OfRollouts) -> dict[str, float]:
    """Return how far the log-probs of trainer and engine differ, over the tokens of rollouts that both have.

    Args:
        trainer: by the trainer's copy of the policy that sampled.
        engine: that the engine reported.
    """
    pairs = [(trainer[index].double(), engine[index].double()) for index in trainer.keys() & engine.keys()]
    pairs = [(ours, theirs) for ours, theirs in pairs if len(ours)]
    if not pairs:
        return {}
    # Thirds by position: token t of T is in the first one if 3 t < T.
    thirds = torch.cat([3 * torch.arange(len(ours)) // len(ours) for ours, _ in pairs])
    ours, theirs = (torch.cat(side) for side in zip(*pairs, strict=True))
    differences = (ours - theirs).abs()
    metrics = {
        "logprob_diff_mean": differences.mean(),
        "logprob_diff_max": differences.max(),
        "logprob_diff_first": differences[thirds == 0].mean(),
        "improbable_tokens": (theirs < IMPROBABLE).double().mean(),
    }
    if (thirds == 2).any():  # absent in responses of one or two tokens
        metrics["logprob_diff_last"] = differences[thirds == 2].mean()
    return {name: float(value) for name, value in metrics.items()}


def log_probs_by_rollout(notes: Sequence[MicroBatch]) -> dict[int, torch.Tensor]:
    """Return the trainer's log-probs of the policy that sampled, where it computed and used them."""
    log_probs: dict[int, torch.Tensor] = {}
    for note in notes:
        if note.sampled is None:
            continue
        rows: dict[int, list[torch.Tensor]] = {}
        for index, values in zip(note.samples, note.sampled.split(note.lengths), strict=True):
            rows.setdefault(index, []).append(values)
        for index, (last, *branches) in rows.items():  # branches are earlier in the rollout, and later in the batch
            whole = torch.cat([*branches, last])
            if len(whole):
                log_probs.setdefault(index, whole)
    return log_probs


def _add_details(
    samples: Sequence[Sample],
    batches: Sequence[Batch],
    notes: Sequence[MicroBatch],
    trainer: OfRollouts,
    engine: OfRollouts,
    tokenizer: Tokenizer | None,
) -> None:
    """Give each rollout ``details``: its advantage, and the trainer's and the engine's view of its tokens (nat)."""
    advantages = at_sampled(batches, "advantages")
    losses: dict[int, float] = {}  # the largest over several passes
    for note in notes:
        for index in note.samples:
            losses[index] = max(losses.get(index, 0.0), note.loss, key=abs)
    for index, sample in enumerate(samples):
        sample.details = details = dict[str, Any]()
        if len(advantages.get(index, ())):
            details["advantage"] = float(advantages[index].double().mean())
        if index in losses:
            details["micro_batch_loss"] = losses[index]
        if len(trainer.get(index, ())):
            details["surprisal"] = -float(trainer[index].double().mean())
            details["lowest_log_prob"] = float(trainer[index].min())
            details.update(engine_metrics({index: trainer[index]}, engine))
        if tokenizer is not None:
            details["least_likely_tokens"] = least_likely(sample, trainer.get(index), tokenizer.decode)


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
