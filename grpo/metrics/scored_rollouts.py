"""The numbers of :mod:`grpo.metrics.parity`, computed from rollouts that engines and trainer have scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.metrics.parity import Cell, Comparison, Row

QUARTERS = 4
# A token whose router is close to a tie can differ by several nat, from rounding alone. A fault moves more than a few.
CLIP = 0.5  # nat
ROUNDS = 20
STRETCH = 128  # tokens in a row of a rollout; those further apart hardly depend on each other
FEWEST = 8  # stretches with tokens in a cell that is judged: fewer say too little of their own variation


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
    positions = torch.cat([one.positions for one in rollouts])
    sampled, scored, base = (
        torch.cat([getattr(one, side) for one in rollouts]).double() for side in ("sampled", "scored", "base")
    )
    of = stretches([len(one.positions) for one in rollouts])
    distance, to_base = ((sampled - side).abs().clamp(max=CLIP) for side in (scored, base))
    quarters = torch.bucketize(positions, torch.tensor(ends))
    cells = [_mean(distance[quarters == number], of[quarters == number]) for number in range(len(ends))]
    return Row(name, len(of), _mean(distance, of), cells, _slope(sampled, scored, of), _mean(distance - to_base, of))


def stretches(lengths: Sequence[int]) -> torch.Tensor:
    """Return for each token of rollouts, one after the other, the number of its stretch, int64 ``[T]``."""
    parts = [size for length in lengths for size in (*[STRETCH] * (length // STRETCH), length % STRETCH) if size]
    return torch.repeat_interleave(torch.tensor(parts))


def _mean(values: torch.Tensor, of: torch.Tensor) -> Cell:
    mean = float(values.mean())
    return Cell(mean, _error((values - mean) / max(len(values), 1), of))


def _error(influence: torch.Tensor, of: torch.Tensor) -> float:
    """Return the standard error of a number to which each token adds its influence.

    Tokens near each other are not independent: what an expert did to one, later ones read. So their influences are
    summed over stretches, whose sums vary around 0, and the squares of those add up (Liang and Zeger 1986).

    Args:
        influence: ``[T]``; adds up to 0.
        of: int64 ``[T]``, the stretch of each token.
    """
    sums = torch.zeros(int(of.max()) + 1 if len(of) else 0, dtype=influence.dtype).index_add(0, of, influence)
    count = len(of.unique())
    return math.sqrt(count / (count - 1) * float(sums.square().sum())) if count >= FEWEST else math.nan


def _slope(of_engine: torch.Tensor, of_trainer: torch.Tensor, of: torch.Tensor) -> Cell:
    """Return the slope of a robust regression with Huber's loss (Huber 1964), by reweighted least squares."""
    weights, slope, influence = torch.ones_like(of_trainer), math.nan, torch.full_like(of_trainer, math.nan)
    for _ in range(ROUNDS):
        x, y = (side - (weights * side).sum() / weights.sum() for side in (of_trainer, of_engine))
        variance = float((weights * x * x).sum())
        if not variance:
            break
        slope = float((weights * x * y).sum()) / variance
        influence = weights * x * (y - slope * x) / variance
        weights = CLIP / (y - slope * x).abs().clamp(min=CLIP)
    return Cell(slope, _error(influence, of))
