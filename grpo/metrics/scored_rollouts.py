"""The numbers of :mod:`grpo.metrics.parity`, computed from rollouts that engines and trainer have scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.metrics.parity import Comparison, Row

QUARTERS = 4
# A token whose router is close to a tie can differ by several nat, from rounding alone. A fault moves more than a few.
CLIP = 0.5  # nat
ROUNDS = 20


@dataclass(frozen=True)
class Rollout:
    """The sampled tokens of one rollout, T of them.

    Attributes:
        engine: the number of the engine that sampled it.
        rank: the rank of the actor that scored it.
        positions: int64 ``[T]``, of the tokens in the sequence.
        sampled: float ``[T]``, log-probs by the engine, nat.
        scored: float ``[T]``, by the trainer.
        base: float ``[T]``, by the trainer without its adapter.
    """

    engine: int
    rank: int
    positions: torch.Tensor
    sampled: torch.Tensor
    scored: torch.Tensor
    base: torch.Tensor


def compare(rollouts: Sequence[Rollout]) -> Comparison:
    """Compare engines and trainer on rollouts, at least one, each with tokens."""
    positions = torch.cat([rollout.positions for rollout in rollouts]).sort().values
    ends = [int(part[-1]) for part in positions.tensor_split(QUARTERS) if len(part)]
    has_adapter = any(not torch.equal(rollout.scored, rollout.base) for rollout in rollouts)
    groups = {"all": list(rollouts)}
    for name in ("engine", "rank"):
        for number in sorted({getattr(rollout, name) for rollout in rollouts}):
            groups[f"{name} {number}"] = [one for one in rollouts if getattr(one, name) == number]
    return Comparison(has_adapter, ends, [_row(name, group, ends) for name, group in groups.items()])


def _row(name: str, rollouts: Sequence[Rollout], ends: Sequence[int]) -> Row:
    positions = torch.cat([rollout.positions for rollout in rollouts])
    sampled, scored = (torch.cat([getattr(one, side) for one in rollouts]).double() for side in ("sampled", "scored"))
    difference = (sampled - scored).clamp(-CLIP, CLIP)
    quarter = torch.bucketize(positions, torch.tensor(ends))
    means = [float(difference[quarter == number].abs().mean()) for number in range(len(ends))]
    mean = float(difference.abs().mean())
    return Row(name, len(positions), mean, means, _slope(sampled, scored), _to_base(rollouts))


def _slope(of: torch.Tensor, on: torch.Tensor) -> float:
    """Return the slope of a robust regression with Huber's loss (Huber 1964), by reweighted least squares."""
    weights, slope = torch.ones_like(on), math.nan
    for _ in range(ROUNDS):
        x, y = (side - (weights * side).sum() / weights.sum() for side in (on, of))
        variance = float((weights * x * x).sum())
        if not variance:
            break
        slope = float((weights * x * y).sum()) / variance
        weights = CLIP / (y - slope * x).abs().clamp(min=CLIP)
    return slope


def _to_base(rollouts: Sequence[Rollout]) -> float:
    def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one - other).abs().double().clamp(max=CLIP).mean()

    nearer = torch.stack([distance(one.sampled, one.scored) - distance(one.sampled, one.base) for one in rollouts])
    error = float(nearer.std()) / math.sqrt(len(nearer)) if len(nearer) > 1 else 0.0
    return float(nearer.mean()) / error if error else math.nan
