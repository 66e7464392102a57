"""Whether engines and trainer are the same policy: their log-probs of the same sampled tokens, compared.

Four numbers, each of which sees what the others miss:

- The **mean difference**, nat. Most tokens of a rollout are certain and say little, so it sees coarse faults only.
- The mean difference of the **last quarter** of positions against the first: rotary frequencies are wrong in
  proportion to the position.
- The **scale**: the slope of the engine's log-probs on the trainer's. Rounding leaves it at 1, another temperature does
  not.
- How much nearer an engine is **to the model without the adapter** than to the one with it.

Each has its standard error, and one rule judges it: a problem lies so far beyond its limit that chance explains it as
rarely as :data:`ERRORS` standard errors of a normal distribution. In all of them, a token counts with at most 0.5 nat:
see :data:`grpo.metrics.scored_rollouts.CLIP`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpo.stack.problem import Problem, UserError

ERRORS = 4.0  # beyond a limit: one in 30,000
SCALE_LIMIT = 0.05
DRIFT_LIMIT = 2.0  # last quarter by first
FEWEST = 15  # independent parts from which an engine is judged: it is then found if it lacks its adapter


class PolicyMismatch(UserError):
    """Engines and trainer are not the same policy, so the run must not train on its rollouts."""


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

    def times(self, factor: float) -> "Cell":
        """Return the cell of the same tokens with all values multiplied."""
        return Cell(factor * self.value, factor * self.error, self.parts)

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
        tokens: sampled tokens.
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
        """Yield what rounding does not explain, each with its likely causes in order.

        Args:
            limit: of the mean difference, nat.
        """
        for row in self.rows:
            yield from _problems(row, limit)


def _problems(row: Row, limit: float) -> Iterator[Problem]:
    first, last = row.quarters[0], row.quarters[-1]
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
    if last.exceeds(limit) and last.minus(first.times(DRIFT_LIMIT)).exceeds(0):
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
