"""The few numbers that summarize a run, with 95% intervals, and where its time went."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.compare import compare_evaluations, read_grades
from grpo.metrics.metric_schema import SCHEMA
from grpo.run.estimators import score_interval
from grpo.run.measure import get_name, get_value, is_whole
from grpo.run.run_state import RUNNING, Run
from grpo.stack.problem import UserError
from scripts.report import scales
from scripts.report.runs import series

WINDOW = 10  # steps at each end of a training curve, at most a third of it
# Consecutive phases of a step; the reward's seconds are part of the sampling's.
PHASES = [m.name for m in SCHEMA if m.name.startswith("seconds.") and m.source == "launcher"]
TOTAL = "seconds.total"


@dataclass(frozen=True)
class Tile:
    """One number.

    Attributes:
        interval: "" if there is none.
        note: how it was computed.
    """

    label: str
    value: str
    interval: str = ""
    note: str = ""


def tiles(run: Run, first: Run) -> list[Tile]:
    """Return a run's numbers.

    Args:
        first: the first run of the report; the last evaluation is compared with it.
    """
    shown = [_progress(run), *_held_out(run)]
    if first is not run:
        shown += _gain("held-out, against " + first.name, first, run, -1)
    points = series(run.metrics)
    shown += [_average_trained(label, points[name]) for name, label in TRAINED if name in points]
    return shown + _time(run, points)


TRAINED = (("correct", "train correct"), ("reward", "reward"), ("response_length", "tokens per response"))


def _progress(run: Run) -> Tile:
    planned = f"of {run.planned}" if run.planned else ""
    return Tile("steps", str(run.step), planned, f"resumed {_times(len(run.resumes))}" if run.resumes else "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _held_out(run: Run) -> list[Tile]:
    if not run.graded:
        return []
    last = run.graded[-1]
    shown = [
        Tile(
            f"held-out {get_name(last)}",
            f"{get_value(last):.3f}",
            _format_range(last.get("ci_low"), last.get("ci_high"), ".3f"),
            f"step {last['step']}" + _problems(last),
        )
    ]
    return shown + (_gain("held-out, change since the start", run, run, 0) if len(run.graded) > 1 else [])


def _problems(row: dict[str, Any]) -> str:
    if not is_whole(row):
        return f", graded {row['n']} of {row['problems']} problems"
    return f", {row['n']} problems" if "n" in row else ""


def _gain(label: str, before: Run, after: Run, which: int) -> list[Tile]:
    """Return the change from an evaluation of `before` to the last one of `after`, paired by problem, or why not."""
    old, new = (list(one.files.sample_files("eval").items()) for one in (before, after))
    if not new or old[which:][:1] == new[-1:]:
        return []
    names = (before.name, after.name) if before is not after else (f"step {old[0][0]}", f"step {new[-1][0]}")
    try:
        if not old:
            raise UserError(f"{before.name} has no evaluation", "")
        result = compare_evaluations(read_grades(old[which][1]), read_grades(new[-1][1]), names)
    except UserError as error:  # other problems, or samples of another version
        return [Tile(label, "not compared", "", error.problem.what)]
    better, worse = result["better"], result["worse"]
    common = " that both graded" if result["only_a"] or result["only_b"] else ""
    return [
        Tile(
            label,
            f"{result['difference']:+.3f}",
            _format_range(result["ci_low"], result["ci_high"], "+.3f"),
            f"p = {result['p_value']:.2g}; {better} better, {worse} worse of {result['n']}{common}; "
            f"step {old[which][0]} to step {new[-1][0]}",
        )
    ]


def _format_range(low: Any, high: Any, form: str) -> str:
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    return f"{low:{form}} to {high:{form}}" if numbers else ""


def _average_trained(label: str, points: Sequence[tuple[int, float]]) -> Tile:
    """Return the mean of the last steps. The interval treats steps as independent: each draws other prompts."""
    size = min(WINDOW, max(2, len(points) // 3))
    last = [value for _, value in points[-size:]]
    mean = statistics.fmean(last)
    is_enough = len(last) >= 4  # with fewer, the interval is wider than any range
    low, high = score_interval([[value] for value in last]) if is_enough else (None, None)
    interval = "" if low is None or high is None else f"{scales.text(low)} to {scales.text(high)}"
    steps = f"last {len(last)} steps" if len(last) > 1 else f"step {points[-1][0]}"
    if len(points) >= 2 * size:
        steps += f"; first {size}: {scales.text(statistics.fmean(value for _, value in points[:size]))}"
    return Tile(label, scales.text(mean), interval, steps)


def _time(run: Run, points: dict[str, list[tuple[int, float]]]) -> list[Tile]:
    seconds = [value for _, value in points.get(TOTAL, [])]
    if not seconds:
        return []
    usual = statistics.median(seconds)
    shown = [Tile("time per step", duration(usual), "", f"median; all {len(seconds)} took {duration(sum(seconds))}")]
    left = (run.planned or 0) - run.step
    if run.state == RUNNING and run.has_stepped and left > 0:
        shown.append(Tile("time left", duration(usual * left), "", f"{left} steps, without evaluations"))
    return shown


def duration(seconds: float) -> str:
    """Return seconds for display: 0.3 s, 45 s, 12 min, 3.5 h, 2.1 days."""
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{scales.text(seconds / size)} {name}"
    return f"{scales.text(seconds)} s"


@dataclass(frozen=True)
class Phase:
    """Mean seconds per step of one phase, and its share of the step."""

    name: str
    seconds: float
    share: float


def phases(run: Run) -> list[Phase]:
    """Return where a step's time goes, in step order; "other" is the time outside all phases."""
    sums = {name: math.fsum(value for _, value in points) for name, points in series(run.metrics).items()}
    steps = len(series(run.metrics).get(TOTAL, []))
    known = {metric.name for metric in SCHEMA}
    names = [*PHASES, *(name for name in sums if name.startswith("seconds.") and name not in known)]
    parts = {name.removeprefix("seconds."): sums[name] for name in names if name in sums and name != TOTAL}
    if not steps or sums[TOTAL] <= 0:
        return []
    parts["other"] = max(0.0, sums[TOTAL] - math.fsum(parts.values()))
    return [Phase(name, value / steps, value / sums[TOTAL]) for name, value in parts.items()]


def describe_times(run: Run) -> str:
    """Return when the run wrote its first and its last line."""
    stamps = [row["time"] for row in (*run.metrics, *run.evals) if isinstance(row.get("time"), int | float)]
    if not stamps:
        return ""
    begin, end = (time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp)) for stamp in (min(stamps), max(stamps)))
    return begin if begin == end else f"{begin} to {end}"
