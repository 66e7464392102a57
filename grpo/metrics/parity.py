"""Whether engines and trainer are the same policy: their log-probs of the same sampled tokens, compared.

Four numbers, each of which sees what the others miss:

- The **mean difference**, nat. Most tokens of a rollout are certain and say little, so it sees coarse faults only.
- The mean difference of the **last quarter** of positions against the first: rotary frequencies are wrong in
  proportion to the position.
- The **scale**: the slope of the engine's log-probs on the trainer's. Rounding leaves it at 1, another temperature does
  not.
- How much nearer an engine is **to the model without the adapter** than to the one with it.

Each has its standard error, and one rule judges it: a problem lies so far beyond its limit that chance explains it as
rarely as :data:`ERRORS` standard errors of a normal distribution. In all of them, a token counts with at most
:data:`CLIP` nat.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from grpo.stack.problem import Problem

ERRORS = 4.0  # beyond a limit: one in 30,000
SCALE_LIMIT = 0.05
DRIFT_LIMIT = 2.0  # last quarter by first
FEWEST = 15  # independent parts from which an engine is judged: it is then found if it lacks its adapter
QUARTERS = 4
# A token whose router is close to a tie can differ by several nat, from rounding alone. A fault moves more than a few.
CLIP = 0.5  # nat
ROUNDS = 20
STRETCH = 128  # positions; tokens of a prompt's rollouts that are further apart hardly depend on each other


@dataclass(frozen=True)
class Rollout:
    """The T sampled tokens of one rollout, by the numbers of its engine, of the actor's rank, and of its prompt."""

    engine: int
    rank: int
    prompt: int
    positions: torch.Tensor  # int64 [T], in the sequence
    sampled: torch.Tensor  # float [T], log-probs by the engine, nat
    scored: torch.Tensor  # by the trainer
    base: torch.Tensor  # by the trainer without its adapter


@dataclass(frozen=True)
class Cell:
    """A number over tokens.

    Attributes:
        value: NaN without tokens.
        error: its standard error; NaN if there are too few tokens to know it.
        parts: how many independent parts of equal weight the error comes from.
    """

    value: float
    error: float
    parts: float

    def exceeds(self, limit: float) -> bool:
        """Return whether the value is above the limit by more than chance; False if a number is NaN.

        A few parts do not tell their error well. The distance in errors therefore has Student's distribution, which is
        brought to the normal one (Wallace 1959).
        """
        freedom, beyond = self.parts - 1, self.value - limit
        if not (beyond > 0 and freedom > 0):
            return False
        ratio = math.inf if self.error == 0 else beyond / self.error
        normal = math.sqrt(freedom * math.log1p(ratio * ratio / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
        return normal > ERRORS

    def minus(self, other: "Cell") -> "Cell":
        """Return the difference to the cell of other tokens; its parts are Welch's (1947)."""
        variance = self.error**2 + other.error**2
        spread = sum(cell.error**4 / (cell.parts - 1) for cell in (self, other) if cell.parts > 1)
        parts = 1 + variance**2 / spread if spread else min(self.parts, other.parts)
        return Cell(self.value - other.value, math.sqrt(variance), parts)

    def __str__(self) -> str:
        return f"{self.value:.4f}" + ("" if math.isnan(self.error) else f" ±{self.error:.4f}")


@dataclass(frozen=True)
class Row:
    """One engine, one rank, or all of them.

    Attributes:
        name: "engine 0", "rank 1", or "all".
        mean: mean difference of engine and trainer, nat.
        quarters: the same over each quarter of all tokens by position.
        scale: slope of the engine's log-probs on the trainer's.
        to_base: how much nearer the engine is to the model without its adapter than to the one with it, nat; not above
            0 for an adapter of zero.
    """

    name: str
    tokens: int
    mean: Cell
    quarters: list[Cell]
    scale: Cell
    to_base: Cell


@dataclass(frozen=True)
class Comparison:
    """Engines and trainer on the tokens of one step.

    Attributes:
        has_adapter: whether the adapter changes any log-prob.
        ends: the last position of each quarter.
        rows: all, then engines, then ranks.
    """

    has_adapter: bool
    ends: list[int]
    rows: list[Row]

    def table(self) -> list[str]:
        """Return the lines of a table for the console."""
        starts = [0, *(end + 1 for end in self.ends)]
        spans = [f"{start}-{end}" for start, end in zip(starts, self.ends, strict=False)]
        head = ["", "tokens", *spans, "all", "scale"]
        body = [[row.name, f"{row.tokens}", *map(str, (*row.quarters, row.mean, row.scale))] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [zip(line, widths, strict=True) for line in (head, *body)]
        return ["  ".join(cell.rjust(width) for cell, width in line) for line in lines]

    def problems(self, limit: float) -> Iterator[Problem]:
        """Yield what rounding does not explain, above a limit of the mean difference (nat), with its likely causes."""
        for row in self.rows:
            yield from _problems(row, limit)


def _problems(row: Row, limit: float) -> Iterator[Problem]:
    first, last = row.quarters[0], row.quarters[-1]
    most = Cell(DRIFT_LIMIT * first.value, DRIFT_LIMIT * first.error, first.parts)
    if row.to_base.exceeds(0):
        yield Problem(
            f"{row.name}: nearer to the model without its adapter, by {row.to_base} nat",
            "likely: the engine does not apply the adapter; one TP rank has a wrong slice; the prefix cache is stale",
        )
    if Cell(abs(row.scale.value - 1), row.scale.error, row.scale.parts).exceeds(SCALE_LIMIT):
        yield Problem(
            f"{row.name}: the engine's log-probs are {row.scale} times the trainer's",
            "likely: --temperature is applied on one side only; --engine_model has other weights than MODEL",
        )
    if last.exceeds(limit) and last.minus(most).exceeds(0):
        yield Problem(
            f"{row.name}: the difference grows with the position, from {first} to {last} nat",
            "likely: rotary frequencies in bf16, or of another model; sinks or sliding window dropped",
        )
    elif row.mean.exceeds(limit):
        yield Problem(
            f"{row.name}: the mean difference is {row.mean} nat, the limit {limit:g}",
            "likely: sinks dropped; rotary frequencies; adapter; routing (try --routing_replay); --engine_model has "
            "other weights than MODEL; quantization",
        )


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
