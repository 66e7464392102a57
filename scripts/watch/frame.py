"""One frame of the view: a run as lines for a terminal."""

import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.text import Text

from grpo.diagnosis.finding import CRITICAL, Diagnosis
from grpo.metrics.metric_schema import BY_NAME, SCHEMA, TIERS, Metric, flat
from grpo.run.measure import get_name, get_value, keep_last_measure
from grpo.run.progress import describe_continuation, interval, is_number
from grpo.run.run_state import CRASHED, FINISHED, RUNNING, STOPPED, Run
from grpo.stack.command import printable
from scripts.report.panels import missing
from scripts.watch.samples import NewestSamples, SampleLine
from scripts.watch.text import cut_to_end, duration, flatten_text, number, sparkline

_STATE_STYLES = {RUNNING: "bold green", FINISHED: "bold green", STOPPED: "bold yellow", CRASHED: "bold red"}
_NAME, _VALUE, _MAX_WIDTH = 18, 8, 160
# A run is called quiet after this many times the usual step time, evaluations aside.
# Of the tiers of which only a few metrics are shown.
_RESPONSES = ("response_length", "truncated", "entropy", "repetition")
_REWARD = ("reward_correct_correlation", "high_reward_wrong")
_QUIET_STEPS, _QUIET_SECONDS = 5, 60.0
Numbers = Sequence[dict[str, float]]


def frame(
    run: Run,
    samples: NewestSamples,
    now: float,
    width: int,
    height: int | None = None,
    diagnosis: Diagnosis | None = None,
) -> list[Text]:
    """Return the lines of the view.

    Args:
        now: seconds since 1970.
        width, height: of the terminal, in characters; without a height nothing is left out.
        diagnosis: of the steps so far; None without one.
    """
    width = max(40, min(width, _MAX_WIDTH))
    rows = _numbers(run.metrics)
    lines = [*header(run, now, width), *_findings(diagnosis, width), *_out_of_range(rows, width)]
    lines += _learning(run, rows, width)
    lines += _section(TIERS[2], _cells([m.name for m in _tier(2)], rows, width), width)
    lines += _section(TIERS[3], _cells(_RESPONSES, rows, width), width)
    lines += _section(TIERS[4], _cells(_REWARD, rows, width) + _judge(rows, width), width)
    lines += _section("Where does the time go?", _phases(rows, width), width)
    lines += _samples(samples, width)
    lines += _schema_differences(run, rows, width)
    for line in lines:
        line.plain = printable(line.plain)
        line.truncate(width, overflow="ellipsis")
    if height is not None and len(lines) > height:
        left_out = len(lines) - height + 1
        lines = [*lines[: height - 1], Text(f"{left_out} more lines: enlarge the terminal, or use --once", "dim")]
    return lines


def header(run: Run, now: float, width: int) -> list[Text]:
    """Return the lines on the state of a run: how far it is, when it ends, and what went wrong."""
    step, planned = run.step, run.planned
    share = min(step / planned, 1.0) if planned else 0.0
    done = f"  step {step}/{planned} {share:.0%} " if planned else f"  step {step} "
    first = Text.assemble((flatten_text(run.name), "bold"), "  ", (run.state, _STATE_STYLES[run.state]), done)
    bar = min(40, width - first.cell_len) if planned else 0
    if bar > 5:
        full = int(share * bar)
        first.append("━" * full, "green").append("─" * (bar - full), "dim")
    return [first, *_wrap_parts(_clock(run, now), width), *_wrap_parts(_notes(run, now), width, "yellow")]


def _clock(run: Run, now: float) -> list[str]:
    pace, left = run.seconds_a_step(), run.seconds_left(now)
    parts = [f"{duration(pace)} per step"] if pace is not None else []
    if left is not None:
        parts.append(f"{duration(left)} left, until {_hour(now + left, now)}")
    if run.started is not None:
        parts.append(f"started {_hour(run.started, now)}")
    if run.resumes:
        times = f"{len(run.resumes)} times, last" if len(run.resumes) > 1 else "once,"
        parts.append(f"resumed {times} after step {run.resumes[-1].get('step')}")
    if run.last_line is not None:
        ago = f"{duration(max(now - run.last_line, 0.0))} ago" if run.state == RUNNING else _hour(run.last_line, now)
        parts.append(f"last update {ago}")
    return parts


def _hour(moment: float, now: float) -> str:
    is_near = abs(moment - now) < 12 * 3600
    return time.strftime("%H:%M" if is_near else "%Y-%m-%d %H:%M", time.localtime(moment))


def _notes(run: Run, now: float) -> list[str]:
    """Return what a user should know besides the numbers."""
    notes = []
    part_started = run.resumes[-1]["time"] if run.resumes else run.started
    log = run.files.logs / "driver.log"
    pace, checkpoints = run.seconds_a_step(), run.files.find_folder("ckpt_path", run.config)
    if run.state == RUNNING and (run.last_line is None or run.last_line < (part_started or 0.0)):
        notes.append("engines and actor are starting" if run.last_line is None else "the resumed run is starting")
    elif run.state == RUNNING and pace and run.last_line and now - run.last_line > _QUIET_STEPS * pace + _QUIET_SECONDS:
        notes.append(f"no update for {duration(now - run.last_line)}; see {log}")
    elif run.state == CRASHED:
        how = (
            "the run was killed, or the machine went down"
            if run.code is None
            else f"the run failed: {run.cause or f'exit code {run.code}'}"
        )
        notes.append(f"{how}; see {log}; {describe_continuation(run.folder, checkpoints, run.config)}")
    elif run.state == STOPPED and run.code is not None:
        notes.append(f"the run was stopped; {describe_continuation(run.folder, checkpoints, run.config)}")
    for lines in (run.progress.metrics, run.progress.evals):
        if lines.broken:
            notes.append(f"{lines.broken} broken line{'s' * (lines.broken > 1)} skipped in {lines.path.name}")
    if run.progress.lost.count:
        notes.append(f"lost: {run.progress.lost.describe()}")
    if not run.config:
        notes.append("config.json cannot be read")
    return notes


def _findings(diagnosis: Diagnosis | None, width: int) -> list[Text]:
    if diagnosis is None:
        return []
    lines = [_title("Findings", width)]
    for finding in diagnosis.findings:
        style = "bold red" if finding.severity == CRITICAL else "bold yellow"
        lines += _wrap_parts([flatten_text(finding.headline())], width, style)
    if not diagnosis.findings:
        return [*lines, Text(diagnosis.describe_no_findings())]
    watched = [finding.title for finding in diagnosis.watched]
    return lines + (_wrap_parts([f"to watch: {', '.join(watched)}"], width, "yellow") if watched else [])


def _learning(run: Run, rows: Numbers, width: int) -> list[Text]:
    held_out = [{get_name(row).replace(" ", "_"): get_value(row)} for row in run.graded]
    cells = _cells(_columns(held_out), held_out, width)
    cells += _cells([m.name for m in _tier(1) if m.source != "eval"], rows, width)
    lines = _section(TIERS[1], cells, width)
    if run.graded:
        measured = keep_last_measure(run.graded)
        first, last = measured[0], measured[-1]
        text = f"held out: {interval(first)} at step {first['step']}"
        if last is not first:
            text += f" -> {interval(last)} at step {last['step']}"
        lines += _wrap_parts([text], width)
    return lines


def _numbers(rows: Iterable[dict[str, Any]]) -> Numbers:
    return [{name: value for name, value in flat(row).items() if is_number(value)} for row in rows]


def _tier(tier: int) -> list[Metric]:
    return [metric for metric in SCHEMA if metric.tier == tier]


def _columns(rows: Numbers) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cells(
    names: Iterable[str], rows: Numbers, width: int, show: Callable[[str, float], str] | None = None
) -> list[Text]:
    """Return name, curve and last value of each column that has a number; one outside its range is marked."""
    # Names longer than a half, such as those of a judge's models, get the whole width.
    longest = max((len(_label(name)) for name in names), default=0)
    column = _half(width) if longest <= _NAME else width
    size = max(_NAME, min(longest, column - _VALUE - 8))
    curve, cells = column - size - _VALUE - 3, []
    for name in names:
        values = [row.get(name) for row in rows]
        there = [value for value in values if value is not None]
        if not there:
            continue
        shown = show(name, there[-1]) if show else number(there[-1])
        mark = " " if _is_healthy(name, there[-1]) else "!"
        cell = Text(f"{_label(name)[:size]:<{size}} ")
        cell.append(f"{sparkline(values, curve, _combine(name)):<{curve}}", "cyan")
        cells.append(cell.append(f" {shown:>{_VALUE}}{mark}", "bold red" if mark == "!" else "bold"))
    return cells


def _label(name: str) -> str:
    """Return a column's name without what its section already says."""
    return flatten_text(name.removeprefix("seconds.").removeprefix("judge_").removeprefix("reward_correct_"))


def _combine(name: str) -> Callable:
    """Return the function that combines several steps into one number, so that no spike is averaged away."""
    if name.endswith(("_max", "_spike")):
        return max
    return min if name.endswith("_min") else statistics.fmean


def _is_healthy(name: str, value: float) -> bool:
    low, high = (BY_NAME[name].healthy if name in BY_NAME else None) or (None, None)
    return (low is None or value >= low) and (high is None or value <= high)


def _section(title: str, cells: Sequence[Text], width: int) -> list[Text]:
    """Return a title with its cells, in two columns if they fit; [] without cells."""
    if not cells:
        return []
    if any(cell.cell_len > _half(width) for cell in cells) or _half(width) == width:
        return [_title(title, width), *cells]
    half = (len(cells) + 1) // 2
    pairs = [(cells[row], cells[row + half] if row + half < len(cells) else Text()) for row in range(half)]
    return [_title(title, width), *(Text.assemble(left, "  ", right) for left, right in pairs)]


def _half(width: int) -> int:
    """Return the width of a column: half of it if there is room for two."""
    return (width - 2) // 2 if width >= 2 * (_NAME + _VALUE + 8) else width


def _title(title: str, width: int) -> Text:
    return Text(f"── {title} ".ljust(width, "─"), "dim")


def _phases(rows: Numbers, width: int) -> list[Text]:
    names = [name for name in _columns(rows) if name.startswith("seconds.")]
    totals = [row["seconds.total"] for row in rows if "seconds.total" in row]

    def show(name: str, value: float) -> str:
        # The reward's seconds are per rollout, not part of the step's.
        is_part = name != "seconds.total" and totals and totals[-1] > 0
        return f"{_seconds(value)} {value / totals[-1]:3.0%}" if is_part else _seconds(value)

    return _cells(names, rows, width, show)


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _judge(rows: Numbers, width: int) -> list[Text]:
    """Return the judge's numbers, without those of models that it has not used."""
    names = [name for name in _columns(rows) if name.startswith("judge_")]
    used = [name for name in names if "." not in name or any(row.get(name) for row in rows)]
    return _cells(used, rows, width)


def _out_of_range(rows: Numbers, width: int) -> list[Text]:
    """Return values of the last step that are out of range and not shown elsewhere."""
    shown = (*_RESPONSES, *_REWARD)
    names = [
        m.name for m in SCHEMA if m.tier > 2 and m.name not in shown and not m.name.startswith(("judge_", "seconds."))
    ]
    last = rows[-1] if rows else {}
    out = [f"{name} {number(last[name])}" for name in names if name in last and not _is_healthy(name, last[name])]
    return _wrap_parts(["out of range: " + ", ".join(out)], width, "bold red") if out else []


def _schema_differences(run: Run, rows: Numbers, width: int) -> list[Text]:
    """Return the columns that every run writes but this one has not, of tiers 1 and 2, and those the schema lacks."""
    if not rows:
        return []
    lacking = [name for name in missing(run) if BY_NAME[name].tier <= 2]
    lines = _wrap_parts(["missing metrics: " + ", ".join(lacking)], width, "dim") if lacking else []
    unknown = [
        f"{flatten_text(name)} {number(value)}"
        for name, value in rows[-1].items()
        if name not in BY_NAME and not name.startswith(("judge_", "seconds."))
    ]
    return lines + (_wrap_parts(["unknown metrics: " + ", ".join(unknown)], width, "dim") if unknown else [])


def _samples(samples: NewestSamples, width: int) -> list[Text]:
    if samples.step is None or not samples.shown:
        return []
    title = _title(f"Rollouts of step {samples.step}", width)
    return [title, *(line for sample in samples.shown for line in _sample(sample, width))]


def _sample(sample: SampleLine, width: int) -> list[Text]:
    return [
        Text.assemble((sample.why, "bold"), "  ", sample.numbers),
        Text.assemble(("  prompt    ", "dim"), sample.question),
        Text.assemble(("  response  ", "dim"), cut_to_end(sample.response, width - 12)),
    ]


def _wrap_parts(parts: Sequence[str], width: int, style: str = "") -> list[Text]:
    lines: list[Any] = textwrap.wrap("  ".join(parts), width, subsequent_indent="  ") if parts else []
    return [Text(line, style) for line in lines]
