"""Which charts a report has, and of which numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.metrics.metric_schema import BY_NAME, SCHEMA, Metric
from grpo.run.measure import EXACT_MATCH, SCORE, get_name, read_measure
from grpo.run.run_state import Run
from scripts.report.runs import Points, Row, series

OTHER = 0  # the tier of columns that the schema does not contain
ROUNDING = 1e-6  # of the largest value, as of float32
VISIBLE = 1e-4  # of the healthy range
# What no run with another reward has, beside the judge's numbers.
_OF_OUR_REWARD = {"correct", "correct_whole", "answered", "has_final", "high_reward_wrong", "reward_seconds"}
_OF_OUR_REWARD |= {"reward_error", "reward_correct_correlation", "reward_correct_correlation_rolling"}


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
    def values(self) -> list[float]:
        """Return all numbers that the chart draws, with the ends of intervals."""
        held = [p for curve in self.curves for p in curve.held_out]
        ends = [end for p in held for end in (p.value, p.low, p.high) if end is not None]
        return [value for curve in self.curves for _, value in curve.points] + ends

    @property
    def flat(self) -> float:
        """Return the largest difference of two values that means nothing: rounding, or little of the healthy range."""
        ends = [abs(end) for end in self.metric.healthy or () if end is not None]
        return max(ROUNDING * max(map(abs, self.values)), VISIBLE * max(ends, default=0.0))

    @property
    def is_constant(self) -> bool:
        """Say whether the number does not change over the steps, and is healthy."""
        is_known = all(len(curve.points) + len(curve.held_out) > 1 for curve in self.curves)
        return is_known and max(self.values) - min(self.values) <= self.flat and not self.outside

    @property
    def outside(self) -> list[int]:
        """Return the runs whose newest value is outside the healthy range."""
        low, high = self.metric.healthy or (None, None)
        return [
            curve.run
            for curve in self.curves
            if (low is not None and curve.last < low) or (high is not None and curve.last > high)
        ]


def find_metric(name: str) -> Metric | None:
    """Return the schema's entry for a column, including one number per model; None if there is none."""
    return BY_NAME.get(name) or BY_NAME.get(f"{name.partition('.')[0]}.*")


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Return the charts in schema order, then those of unknown columns.

    What the evaluations measure belongs to the first tier, also if it is the score of the user's own reward.
    """
    graded = [row for run in runs for row in run.graded]
    measured = {read_measure(row) for row in graded}
    train = [series(run.metrics) for run in runs]
    held_out = [evaluations(run.evals) for run in runs]
    written = list(dict.fromkeys(name for columns in train for name in columns))
    ranks = {metric.name: rank for rank, metric in enumerate(SCHEMA)}
    made = []
    for name in dict.fromkeys([*written, *(name for columns in held_out for name in columns if name in BY_NAME)]):
        known = find_metric(name)
        tier = 1 if name in measured else known.tier if known else OTHER
        title = get_title(graded) if name == EXACT_MATCH else name
        metric = Metric(title, known.unit, tier, known.meaning, known.source, known.healthy) if known else None
        curves = [
            Curve(run, train[run].get(name, []), held_out[run].get(name, []))
            for run in range(len(runs))
            if name in train[run] or name in held_out[run]
        ]
        rank = -1 if name in measured else ranks[known.name] if known else len(ranks)
        made.append((rank, Panel(metric or Metric(name, "", OTHER, "", ""), curves)))
    return [panel for _, panel in sorted(made, key=lambda pair: pair[0])]


def get_title(rows: Sequence[Row]) -> str:
    """Return what these evaluations measured by `exact_match`, as the name of a column."""
    names = [get_name(row) for row in rows if read_measure(row) == EXACT_MATCH]
    return " or ".join(dict.fromkeys(name.replace(" ", "_") for name in names)) or EXACT_MATCH


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
    """Return the numbers that every run with this kind of reward has but this one lacks."""
    have = {*series(run.metrics), *evaluations(run.evals)}
    if any(read_measure(row) == SCORE for row in run.graded):
        have.add(EXACT_MATCH)  # the score is there instead
    if run.has_own_reward:
        have |= _OF_OUR_REWARD
    models = {name.partition(".")[0] + ".*" for name in have}
    is_judged = not (run.has_own_reward or run.config.get("judge_off"))
    names = [metric.name for metric in SCHEMA if not metric.when and metric.name not in have | models]
    return [name for name in names if is_judged or not name.startswith("judge_")]
