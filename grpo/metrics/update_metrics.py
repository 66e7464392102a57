"""Is the update sound? Computed from all ranks' notes, over all tokens of the step at once."""

import math
from collections.abc import Mapping, Sequence

import torch

from grpo.metrics.token_recorder import MicroBatch

IMPROBABLE = math.log(1e-4)


def policy_metrics(micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
    """Return divergence, clipping, entropy and losses of a step; {} if no token was trained on."""
    if not sum(batch.log_ratios.numel() for batch in micro_batches):
        return {}
    log_ratios, entropy, unallocated = (
        torch.cat([getattr(batch, name) for batch in micro_batches]).double()
        for name in ("log_ratios", "entropy", "unallocated")
    )
    losses = torch.tensor([batch.loss for batch in micro_batches], dtype=torch.float64).abs()
    # A group whose rollouts all got the same reward has zero loss, and there may be many of them.
    usual = losses[torch.tensor([bool((batch.advantages.abs() > 1e-6).any()) for batch in micro_batches])]
    metrics = {
        "ppo_kl": -log_ratios.mean(),
        "policy_loss_max": losses.max(),
        "entropy": entropy.mean(),
        "unallocated_mass": unallocated.mean(),
    }
    if len(usual) and usual.quantile(0.5) > 0:
        metrics["policy_loss_spike"] = losses.max() / usual.quantile(0.5)
    for name in {name: None for batch in micro_batches for name in batch.of_loss}:
        metrics[name] = torch.cat([batch.of_loss[name] for batch in micro_batches]).double().mean()
    differing, replayed = (sum(counts) for counts in zip(*(batch.routing for batch in micro_batches), strict=True))
    if replayed:
        metrics["routing_differs"] = differing / replayed
    if "clip_ratio_low" in metrics:
        metrics["ppo_clip_ratio"] = metrics["clip_ratio_low"] + metrics["clip_ratio_high"]
    return {name: float(value) for name, value in metrics.items()}


def gradient_metrics(norms: Sequence[float]) -> dict[str, float]:
    """Return mean, maximum and number of a step's gradient norms; {} if no optimizer step was made."""
    if not norms:
        return {}
    return {
        "grad_norm": sum(norms) / len(norms),
        "grad_norm_max": max(norms),
        "optimizer_steps": float(len(norms)),
    }


def engine_metrics(trainer: Mapping[int, torch.Tensor], engine: Mapping[int, torch.Tensor]) -> dict[str, float]:
    """Return how far the log-probs of trainer and engine differ, over the tokens of rollouts that both have.

    Args:
        trainer: log-probs of the sampled tokens by the trainer's copy of the policy that sampled, ``[T]`` by rollout.
        engine: log-probs that the engine reported, ``[T]`` by rollout.
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


def log_probs_by_sample(micro_batches: Sequence[MicroBatch]) -> dict[int, torch.Tensor]:
    """Return the trainer's log-probs of the policy that sampled, ``[T]`` by rollout, where it computed and used them.

    Branches come before the last rollout of their rollout.
    """
    log_probs: dict[int, torch.Tensor] = {}
    for batch in micro_batches:
        if batch.sampled is None:
            continue
        parts: dict[int, list[torch.Tensor]] = {}
        for index, values in zip(batch.samples, batch.sampled.split(batch.lengths), strict=True):
            parts.setdefault(index, []).append(values)
        for index, (last, *branches) in parts.items():
            whole = torch.cat([*branches, last])
            if len(whole):
                log_probs.setdefault(index, whole)
    return log_probs
