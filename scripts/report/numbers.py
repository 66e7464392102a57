"""The numbers of a run: by step, and the few that summarize it, with 95% intervals."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.compare import compare_evaluations, read_grades
from grpo.metrics import metric_schema
from grpo.run.estimators import score_interval
from grpo.run.eval_metric import get_name, get_value, is_whole
from grpo.run.run_state import RUNNING, Run
from grpo.stack.problem import UserError

LARGEST = 1e300  # differences of larger numbers are not finite
LAST = 10  # steps whose mean stands for the end of a run
TRAINED = {"correct": "train correct", "reward": "reward", "response_length": "tokens per response"}
Points = list[tuple[int, float]]


def read_series(rows: Sequence[dict[str, Any]]) -> dict[str, Points]:
    """Return the finite values of each number, by step."""
    points: dict[str, Points] = {}
    for row in rows:
        for name, value in metric_schema.flat(row).items():
            if abs(value) < LARGEST:  # False for nan
                points.setdefault(name, []).append((row["step"], value))
    return points


@dataclass(frozen=True)
class Tile:
    """One number of the summary. `note` says how it was computed."""

    label: str
    value: str
    interval: str = ""
    note: str = ""


def summarize(run: Run, first: Run) -> list[Tile]:
    """Return a run's numbers. If the report has several runs, the last evaluation is compared with the first run's."""
    points = read_series(run.metrics)
    resumed = f"resumed {len(run.resumes)} times" if run.resumes else ""
    tiles = [Tile("steps", str(run.step), f"of {run.planned}" if run.planned else "", resumed)]
    if run.graded:
        last = run.graded[-1]
        problems = f"{last['n']} problems" if is_whole(last) and "n" in last else "not all problems were graded"
        interval = _format_interval(last.get("ci_low"), last.get("ci_high"), ".3f")
        tiles.append(
            Tile(f"held-out {get_name(last)}", f"{get_value(last):.3f}", interval, f"step {last['step']}, {problems}")
        )
        tiles += _compare("change since the start", run, run, 0)
    if first is not run:
        tiles += _compare(f"against {first.name}", first, run, -1)
    tiles += [_average(label, points[name]) for name, label in TRAINED.items() if name in points]
    pace, left = run.seconds_a_step(), run.seconds_left()
    if pace is not None:
        tiles.append(Tile("time per step", format_seconds(pace), "", "median of the last steps"))
    if run.state == RUNNING and left is not None:
        tiles.append(Tile("time left", format_seconds(left)))
    return tiles


def _compare(label: str, before: Run, after: Run, which: int) -> list[Tile]:
    """Return the change from an evaluation of `before` to the last one of `after`, paired by problem, or why not."""
    old, new = (list(run.files.sample_files("eval").items()) for run in (before, after))
    if not old or not new or old[which] == new[-1]:
        return []
    try:
        found = compare_evaluations(read_grades(old[which][1]), read_grades(new[-1][1]), ("before", "after"))
    except UserError as error:  # other problems, or samples of another version
        return [Tile(label, "not compared", "", error.problem.what)]
    note = f"p = {found['p_value']:.2g}; {found['better']} better, {found['worse']} worse of {found['n']}; "
    note += f"step {old[which][0]} to step {new[-1][0]}"
    return [
        Tile(label, f"{found['difference']:+.3f}", _format_interval(found["ci_low"], found["ci_high"], "+.3f"), note)
    ]


def _average(label: str, points: Points) -> Tile:
    """Return the mean of the last steps. The interval treats them as independent: each draws other prompts."""
    size = min(LAST, max(1, len(points) // 3))
    first, last = ([value for _, value in part] for part in (points[:size], points[-size:]))
    interval = ""
    if size >= 4:  # with fewer, it is wider than any range
        low, high = score_interval([[value] for value in last])
        interval = "" if low is None or high is None else f"{low:.3g} to {high:.3g}"
    return Tile(
        label,
        f"{statistics.fmean(last):.3g}",
        interval,
        f"last {size} steps; first {size}: {statistics.fmean(first):.3g}",
    )


def _format_interval(low: Any, high: Any, form: str) -> str:
    are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
    return f"{low:{form}} to {high:{form}}" if are_numbers else ""


def format_seconds(seconds: float) -> str:
    """Return seconds for people: 0.3 s, 45 s, 12 min, 3.5 h, 2.1 days."""
    for size, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def share_phases(run: Run) -> list[tuple[str, str, float]]:
    """Return where a step's time goes: the name, the mean seconds and the share of each phase that follows another."""
    series = read_series(run.metrics)
    total = sum(value for _, value in series.get("seconds.total", []))
    phases = [m.name for m in metric_schema.SCHEMA if m.name.startswith("seconds.")]
    sums = {
        name: sum(value for _, value in series[name]) for name in phases if name in series and name != "seconds.total"
    }
    if total <= 0:
        return []
    sums["seconds.other"] = max(0.0, total - sum(sums.values()))
    steps = len(series["seconds.total"])
    return [(name.removeprefix("seconds."), format_seconds(sum_ / steps), sum_ / total) for name, sum_ in sums.items()]
