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
STRETCH = 128  # positions; tokens of a prompt's rollouts that are further apart hardly depend on each other


@dataclass(frozen=True)
class Rollout:
    """The sampled tokens of one rollout, T of them.

    Attributes:
        engine: the number of the engine that sampled it.
        rank: the rank of the actor that scored it.
        prompt: the number of its prompt.
        positions: int64 ``[T]``, of the tokens in the sequence.
        sampled: float ``[T]``, log-probs by the engine, nat.
        scored: float ``[T]``, by the trainer.
        base: float ``[T]``, by the trainer without its adapter.
    """

    engine: int
    rank: int
    prompt: int
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
    prompts = torch.cat([torch.full_like(one.positions, one.prompt) for one in rollouts])
    sampled, scored, base = (
        torch.cat([getattr(one, side) for one in rollouts]).double() for side in ("sampled", "scored", "base")
    )
    stretches = prompts * int(positions.max() + 1) + positions // STRETCH
    distance, to_base = ((sampled - side).abs().clamp(max=CLIP) for side in (scored, base))
    quarters = torch.bucketize(positions, torch.tensor(ends))
    cells = [_mean(distance[quarters == number], stretches[quarters == number]) for number in range(len(ends))]
    mean, nearer = (_mean(values, stretches) for values in (distance, distance - to_base))
    return Row(name, len(positions), mean, cells, _slope(sampled, scored, stretches), nearer)


def _mean(values: torch.Tensor, stretches: torch.Tensor) -> Cell:
    mean, shares = float(values.mean()), torch.full_like(values, 1 / max(len(values), 1))
    return Cell(mean, *_error((values - mean) * shares, shares, stretches))


def _slope(of: torch.Tensor, on: torch.Tensor, stretches: torch.Tensor) -> Cell:
    """Return the slope of a robust regression with Huber's loss (Huber 1964), by reweighted least squares."""
    weights = torch.ones_like(on)
    for _ in range(ROUNDS):
        x, y = (side - (weights * side).sum() / weights.sum() for side in (on, of))
        variance = (weights * x * x).sum()  # 0 if the trainer's log-probs do not vary: then all is NaN
        slope = (weights * x * y).sum() / variance
        influence, shares = weights * x * (y - slope * x) / variance, weights * x * x / variance
        weights = CLIP / (y - slope * x).abs().clamp(min=CLIP)
    return Cell(float(slope), *_error(influence, shares, stretches))


def _error(influence: torch.Tensor, shares: torch.Tensor, stretches: torch.Tensor) -> tuple[float, float]:
    """Return the standard error of a number, and how many stretches of equal weight it comes from (Kish 1965).

    It is the jackknife's error, which leaves out one stretch after the other. Tokens of a stretch are not independent:
    rollouts of a prompt say much the same, and later tokens read what an expert did to an earlier one.

    Args:
        influence: what each token adds to the number, ``[T]``; together 0.
        shares: how much each token counts, ``[T]``; together 1.
        stretches: int64 ``[T]``, the number of each token's stretch.
    """
    found, number = stretches.unique(return_inverse=True)
    influence, shares = (torch.zeros(len(found)).to(each).index_add(0, number, each) for each in (influence, shares))
    parts = float(1 / shares.square().sum())
    if len(found) < 2:
        return math.nan, parts
    changes = influence / (1 - shares)  # of the number, without the stretch
    return math.sqrt((len(found) - 1) / len(found) * float(changes.square().sum())), parts
