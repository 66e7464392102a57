"""Which charts a report has, and of which numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.metrics.metric_schema import BY_NAME, SCHEMA, Metric
from grpo.run.measure import EXACT_MATCH, SCORE
from grpo.run.run_state import Run
from scripts.report.runs import Points, Row, series

OTHER = 0  # the tier of columns that the schema does not contain


@dataclass(frozen=True)
class HeldOut:
    """A number of one evaluation, with the ends of its 95% interval if it has one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """A number of one run: over its training steps, and over its evaluations.

    Attributes:
        run: the run's index, from 0.
    """

    run: int
    points: Points
    held_out: list[HeldOut]

    @property
    def last(self) -> float:
        """Return the newest value."""
        return self.points[-1][1] if self.points else self.held_out[-1].value


@dataclass(frozen=True)
class Panel:
    """One chart."""

    metric: Metric
    curves: list[Curve]

    @property
    def outside(self) -> list[int]:
        """Return the runs whose newest value is outside the healthy range."""
        low, high = self.metric.healthy or (None, None)
        return [
            curve.run
            for curve in self.curves
            if (low is not None and curve.last < low) or (high is not None and curve.last > high)
        ]


def metric_of(name: str) -> Metric | None:
    """Return the schema's entry for a column, including one number per model; None if there is none."""
    return BY_NAME.get(name) or BY_NAME.get(f"{name.partition('.')[0]}.*")


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return the charts in schema order, then those of unknown columns."""
    train = [series(run.metrics) for run in runs]
    held_out = [evaluations(run.evals) for run in runs]
    written = list(dict.fromkeys(name for columns in train for name in columns))
    ranks = {metric.name: rank for rank, metric in enumerate(SCHEMA)}
    made = []
    for name in dict.fromkeys([*written, *(name for columns in held_out for name in columns if name in BY_NAME)]):
        known = metric_of(name)
        metric = Metric(name, known.unit, known.tier, known.meaning, known.source, known.healthy) if known else None
        curves = [
            Curve(run, train[run].get(name, []), held_out[run].get(name, []))
            for run in range(len(runs))
            if name in train[run] or name in held_out[run]
        ]
        rank = ranks[known.name] if known else len(ranks)
        made.append((rank, Panel(metric or Metric(name, "", OTHER, "", ""), curves)))
    return [panel for _, panel in sorted(made, key=lambda pair: pair[0])]


def evaluations(rows: Sequence[Row]) -> dict[str, list[HeldOut]]:
    """Return the numbers of the evaluations by name, without their own seconds, which belong to no training step."""
    columns = {
        name: [HeldOut(step, value) for step, value in points]
        for name, points in series(rows).items()
        if name not in ("ci_low", "ci_high", "seconds")
    }
    ends = {row["step"]: (row.get("ci_low"), row.get("ci_high")) for row in rows}
    for measure in {EXACT_MATCH, SCORE} & columns.keys():
        columns[measure] = [HeldOut(p.step, p.value, *map(_number, ends[p.step])) for p in columns[measure]]
    return columns


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None


def missing(run: Run) -> list[str]:
    """Return the numbers that every run has but this one lacks."""
    have = {*series(run.metrics), *evaluations(run.evals)}
    models = {name.partition(".")[0] + ".*" for name in have}
    return [metric.name for metric in SCHEMA if not metric.when and metric.name not in have | models]
