"""Whether engines and trainer are the same policy: their log-probs of the same sampled tokens, compared.

Four numbers, each of which sees what the others miss:

- The **mean difference**, nat. Most tokens of a rollout are certain and say little, so it sees coarse faults only.
- The mean difference of the **last quarter** of positions against the first: rotary frequencies are wrong in
  proportion to the position.
- The **scale**: the slope of the engine's log-probs on the trainer's. Rounding leaves it at 1, another temperature does
  not.
- Whether an engine is **nearer to the model without the adapter** than to the one with it, paired by sample.

In all of them, a token counts with at most 0.5 nat: see :data:`grpo.metrics.scored_rollouts.CLIP`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grpo.stack.problem import Problem

FEWEST_TOKENS = 200  # of a row that is judged
SCALE_LIMIT = 0.05
DRIFT_LIMIT = 2.0  # last quarter by first
ADAPTER_LIMIT = 4.0  # standard errors


@dataclass(frozen=True)
class Row:
    """One engine, one rank, or all of them.

    Attributes:
        name: "engine 0", "rank 1", or "all".
        tokens: sampled tokens.
        mean: mean difference of engine and trainer, nat.
        quarters: the same over each quarter of all tokens by position; NaN where it has no token.
        scale: slope of the engine's log-probs on the trainer's; NaN if these do not vary.
        to_base: how much nearer the engine is to the model without its adapter than to the one with it. The unit is
            the standard error of the mean over samples; NaN for an adapter of zero.
    """

    name: str
    tokens: int
    mean: float
    quarters: list[float]
    scale: float
    to_base: float


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

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Comparison":
        """Return the comparison of :meth:`as_dict`; other keys are left out. JSON has null for NaN."""
        return cls(row["has_adapter"], row["ends"], [Row(**_with_nan(one)) for one in row["rows"]])

    def table(self) -> list[str]:
        """Return the lines of a table for the console."""
        starts = [0, *(end + 1 for end in self.ends)]
        spans = [f"{start}-{end}" for start, end in zip(starts, self.ends, strict=False)]
        head = ["", "tokens", *spans, "mean", "scale"]
        body = [
            [row.name, f"{row.tokens}", *(f"{value:.4f}" for value in (*row.quarters, row.mean)), f"{row.scale:.3f}"]
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [zip(line, widths, strict=True) for line in (head, *body)]
        return ["  ".join(cell.rjust(width) for cell, width in line) for line in lines]

    def problems(self, limit: float) -> Iterator[Problem]:
        """Yield what rounding does not explain, each with its likely causes in order.

        Args:
            limit: of the mean difference, nat.
        """
        for row in self.rows:
            if row.tokens >= FEWEST_TOKENS:
                yield from _problems(row, limit)


def _with_nan(value: Any) -> Any:
    """Return a row of a JSON file with NaN in place of null."""
    if isinstance(value, dict):
        return {name: _with_nan(item) for name, item in value.items()}
    return math.nan if value is None else [_with_nan(item) for item in value] if isinstance(value, list) else value


def _problems(row: Row, limit: float) -> Iterator[Problem]:
    first, last = row.quarters[0], row.quarters[-1]
    if row.to_base > ADAPTER_LIMIT:
        yield Problem(
            f"{row.name}: nearer to the model without its adapter ({row.to_base:.1f} standard errors)",
            "likely: the engine does not apply the adapter; one TP rank has a wrong slice; the prefix cache is stale",
        )
    if abs(row.scale - 1) > SCALE_LIMIT:
        yield Problem(
            f"{row.name}: the engine's log-probs are {row.scale:.3f} times the trainer's",
            "likely: TEMPERATURE is applied on one side only; ENGINE_MODEL has other weights than MODEL",
        )
    if last > limit and last > DRIFT_LIMIT * first:
        yield Problem(
            f"{row.name}: the difference grows with the position, from {first:.4f} to {last:.4f} nat",
            "likely: rotary frequencies in bf16, or of another model; sinks or sliding window dropped",
        )
    elif row.mean > limit:
        yield Problem(
            f"{row.name}: the mean difference is {row.mean:.4f} nat, the limit {limit:g}",
            "likely: sinks dropped; rotary frequencies; adapter; routing (try ROUTING_REPLAY=1); ENGINE_MODEL has "
            "other weights than MODEL; quantization",
        )
