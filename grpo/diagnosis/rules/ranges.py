"""Metrics that leave their healthy range for good. What a finding of another rule explains is not listed beside it."""

import numpy as np

from grpo.diagnosis.finding import (
    WARNING,
    Evidence,
    Finding,
    NotJudged,
)
from grpo.diagnosis.history import History
from grpo.diagnosis.remedies import OUT_OF_RANGE, finding
from grpo.diagnosis.series import Series, spells
from grpo.metrics.metric_schema import BY_NAME, SCHEMA

LASTING = 6  # steps out of the range, up to the last one; a single one inside does not count
MARGIN = 0.1  # of the end of the range, that the median has to be beyond it
BACK = 0.25  # of the way to the range, come in those steps: it may get there
SOLVED = 0.9  # of the samples, beyond which groups have no spread for a good reason

# The scale of a gradient depends on the model: its own start is the measure, for the rule of instability.
RELATIVE = {"grad_norm", "grad_norm_max"}
WATCHED = [metric.name for metric in SCHEMA if metric.healthy and metric.name not in RELATIVE]


def out_of_range(run: History) -> list[Finding] | str:
    """A metric has been out of its healthy range for the last steps, and is not on its way back."""
    if len(run.rows) < LASTING:
        raise NotJudged(f"{len(run.rows)} steps, {LASTING} are needed")
    seen = [series for name in WATCHED if len(series := run.column(name)) >= LASTING]
    found = [one for series in seen if (one := _judge(run, series))]
    return found or f"{len(seen)} metrics are in their ranges, or on their way back"


def _judge(run: History, series: Series) -> Finding | None:
    low, high = BY_NAME[series.name].healthy or (None, None)
    below = low - series.values if low is not None else np.zeros(len(series))
    above = series.values - high if high is not None else np.zeros(len(series))
    distance = np.maximum(np.maximum(below, above), 0.0)
    out = spells(distance > 0, LASTING, gap=1)
    if not out or out[-1][1] != len(series) - 1 or _is_solved(run, series.name):
        return None
    first, recent = out[-1][0], distance[-LASTING:]
    margin = MARGIN * min(abs(end) for end in (low, high) if end is not None)
    early, late = np.median(recent[: LASTING // 2]), np.median(recent[-(LASTING // 2) :])
    if np.median(recent) <= margin or late < (1 - BACK) * early:
        return None
    ends = {"range from": low, "range to": high}
    numbers = {"median": float(np.median(series.values[first:]))}
    numbers |= {what: end for what, end in ends.items() if end is not None}
    onset, last = int(series.steps[first]), int(series.steps[-1])
    name = OUT_OF_RANGE + series.name
    return finding(run, name, WARNING, onset, last, Evidence(series.name, onset, last, numbers))


def _is_solved(run: History, name: str) -> bool:
    correct = run.column("correct").values[-LASTING:]
    return name == "zero_spread_groups" and len(correct) > 0 and float(np.median(correct)) > SOLVED
