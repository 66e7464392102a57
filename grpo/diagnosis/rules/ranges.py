"""Metrics that leave their healthy range for good. What another rule's finding explains is not listed beside it."""

from collections.abc import Mapping

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, Evidence, Finding, NotJudged
from grpo.diagnosis.history import RunHistory, parse_number
from grpo.diagnosis.remedies import OUT_OF_RANGE, finding
from grpo.diagnosis.series import Series, spells
from grpo.metrics.metric_schema import BY_NAME, SCHEMA

LASTING = 6  # steps out of the range, up to the last one; a single step inside does not count
# Failures that are counted, so that few steps prove them: any where none are healthy, or ten times the range.
FAILURES = {metric.name for metric in SCHEMA if metric.healthy and metric.healthy[1] == 0.0}
FAILURES |= {"reward_missing", "reward_error"}
PROVEN, FAR = 3, 10.0
# Nothing restores these, and waiting costs the run's files. Other programs may fill a disk for a moment: two steps.
AT_ONCE = {"disk_free": 2, "lost_writes": 1}
MARGIN = 0.1  # of the range's end: the median must be beyond it by this much
BACK = 0.25  # of the way back to the range in those steps: it may recover

# The scale of a gradient depends on the model; other rules compare it with its own past.
SCALE = {"grad_norm": 10.0, "grad_norm_max": 10.0}  # times the range
# With PIPELINE=1 these include the update that the engines' policy lacks.
OF_ONE_POLICY = {"logprob_diff_mean", "logprob_diff_max", "logprob_diff_first", "logprob_diff_last", "vllm_kl"}
WATCHED = [metric.name for metric in SCHEMA if metric.healthy]


def out_of_range(run: RunHistory) -> list[Finding] | str:
    """A metric has been out of its healthy range for the last steps, and is not recovering."""
    watched = [name for name in WATCHED if name not in OF_ONE_POLICY or not run.setting("PIPELINE")]
    seen = [series for name in watched if len(series := run.column(name))]
    findings = [one for series in seen if (one := _judge_at_once(run, series) or _judge(run, series))]
    if not findings and len(run.rows) < LASTING:
        raise NotJudged(f"only {len(run.rows)} steps; {LASTING} are needed")
    return findings or f"{len(seen)} metrics are in their healthy ranges, or returning to them"


def _judge_at_once(run: RunHistory, series: Series) -> Finding | None:
    """Return what needs no trend: the disk cannot take another checkpoint, or a line was lost."""
    steps = AT_ONCE.get(series.name)
    if steps is None or len(series) < steps:
        return None
    low, high = BY_NAME[series.name].healthy or (None, None)
    if series.name == "disk_free":
        low = _checkpoint_bytes(run) or low
    out = series.values < low if low is not None else series.values > (high or 0.0)
    if not out[-steps:].all():
        return None
    first = len(out) - int(np.argmin(out[::-1])) if not out.all() else 0
    numbers = {"last": float(series.values[-1]), **({"needed for a checkpoint": low} if low is not None else {})}
    return _finding(run, series, first, CRITICAL if low is not None else WARNING, numbers)


def _checkpoint_bytes(run: RunHistory) -> float | None:
    plan = run.config.get("plan")
    return parse_number(plan.get("checkpoint_bytes")) if isinstance(plan, Mapping) else None


def _judge(run: RunHistory, series: Series) -> Finding | None:
    low, high = BY_NAME[series.name].healthy or (None, None)
    below = low - series.values if low is not None else np.zeros(len(series))
    high = high * SCALE.get(series.name, 1.0) if high is not None else None
    above = series.values - high if high is not None else np.zeros(len(series))
    distance = np.maximum(np.maximum(below, above), 0.0)
    is_proven = series.name in FAILURES and bool((series.values[-PROVEN:] > FAR * (high or 0.0)).all())
    out = spells(distance > 0, PROVEN if is_proven else LASTING, gap=1)
    if not out or out[-1][1] != len(series) - 1 or _is_solved(run, series.name):
        return None
    first, recent = out[-1][0], distance[-LASTING:]
    margin = MARGIN * min(abs(end) for end in (low, high) if end is not None)
    early, late = np.median(recent[: LASTING // 2]), np.median(recent[-(LASTING // 2) :])
    if not is_proven and (np.median(recent) <= margin or late < (1 - BACK) * early):
        return None
    ends = {"range from": low, "range to": high}
    numbers = {"median": float(np.median(series.values[first:]))}
    numbers |= {what: end for what, end in ends.items() if end is not None}
    return _finding(run, series, first, WARNING, numbers)


def _finding(run: RunHistory, series: Series, first: int, severity: str, numbers: Mapping[str, float]) -> Finding:
    onset, last = int(series.steps[first]), int(series.steps[-1])
    return finding(run, OUT_OF_RANGE + series.name, severity, onset, last, Evidence(series.name, onset, last, numbers))


def _is_solved(run: RunHistory, name: str) -> bool:
    """Say whether groups lack spread because learning has led to mastery."""
    correct = run.column(run.training_name).values
    if name != "zero_spread_groups" or not len(correct):
        return False
    first, last = (run.is_mastered(float(np.median(part))) for part in (correct[:LASTING], correct[-LASTING:]))
    return last and not first
