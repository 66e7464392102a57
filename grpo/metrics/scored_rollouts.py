"""The numbers of :mod:`grpo.metrics.parity`, computed from rollouts that engines and trainer have scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.metrics.parity import Comparison, Row

QUARTERS = 4


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
    difference = (sampled - scored).abs()
    quarter = torch.bucketize(positions, torch.tensor(ends))
    means = [float(difference[quarter == number].mean()) for number in range(len(ends))]
    return Row(name, len(positions), float(difference.mean()), means, _slope(sampled, scored), _to_base(rollouts))


def _slope(of: torch.Tensor, on: torch.Tensor) -> float:
    centered = on - on.mean()
    variance = float((centered * centered).sum())
    return float((centered * of).sum()) / variance if variance else math.nan


def _to_base(rollouts: Sequence[Rollout]) -> float:
    nearer = torch.stack(
        [
            ((one.sampled - one.scored).abs().double() - (one.sampled - one.base).abs().double()).mean()
            for one in rollouts
        ]
    )
    error = float(nearer.std()) / math.sqrt(len(nearer)) if len(nearer) > 1 else 0.0
    return float(nearer.mean()) / error if error else math.nan
