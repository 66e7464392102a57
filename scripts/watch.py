"""A live view of a run: progress, findings, curves, phase times, the newest rollouts.

    python -m scripts.watch RUN_DIR [--once] [--every SECONDS]

It only reads the run's files, so any number of viewers may watch. It ends when the run does, with a summary, or on
Ctrl-C. If the output is not a terminal, it prints the view once.

A "!" marks a value outside its healthy range; docs/metrics.md has the ranges and the meaning of each name.
"""

import logging
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo.diagnosis.diagnose import alarms, describe_no_alarm, diagnose
from grpo.diagnosis.thresholds import CRITICAL
from grpo.metrics.metric_schema import BY_NAME, SCHEMA, TIERS
from grpo.run.eval_metric import EXACT_MATCH, get_name, get_value
from grpo.run.progress import describe_continuation
from grpo.run.run_files import read_samples
from grpo.run.run_state import CRASHED, FINISHED, RUNNING, STOPPED, Run
from grpo.stack import command
from grpo.stack.problem import UserError
from reward.answers import MARKER
from scripts.report.numbers import Points, format_seconds, read_series, share_phases
from scripts.report.rollouts import list_extremes

BARS = "▁▂▃▄▅▆▇█"
CURVE = 16  # characters of a curve
STYLES = {RUNNING: "bold green", FINISHED: "bold green", STOPPED: "bold yellow", CRASHED: "bold red"}
# Of the tiers that are not shown as a whole.
SHOWN = {3: ("response_length", "truncated", "entropy", "repetition"), 4: ("judge_quality", "judge_failed")}
SHOWN[4] += ("reward_correct_correlation", "high_reward_wrong", "reward_missing")


def draw(run: Run) -> Group:
    """Return the whole view of a run."""
    series = read_series(run.metrics)
    parts: list[RenderableType] = [_header(run), *_notes(run), *_findings(run)]
    for tier in (1, 2, 3, 4):
        names = [m.name for m in SCHEMA if m.tier == tier and m.name != EXACT_MATCH and m.name in series]
        names = [name for name in names if name in SHOWN.get(tier, names)]
        cells = [_cell(name, series[name]) for name in names]
        if tier == 1 and run.graded:
            name = f"held-out {get_name(run.graded[-1])}"
            cells.insert(0, _cell(name, [(row["step"], get_value(row)) for row in run.graded]))
        if cells:
            parts += [_title(TIERS[tier]), Columns(cells, equal=True)]
    if phases := share_phases(run):
        parts += [
            _title("Seconds per step"),
            Text("  ".join(f"{name} {text} ({part:.0%})" for name, text, part in phases)),
        ]
    return Group(*parts, *_rollouts(run))


def _title(title: str) -> Text:
    return Text(f"\n{title}", "dim")


def _header(run: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    pace, left = run.seconds_a_step(), run.seconds_left()
    times = [f"{format_seconds(pace)} per step"] if pace is not None else []
    times += [f"{format_seconds(left)} left"] if left is not None else []
    bar = ProgressBar(total=run.planned, completed=run.step, width=30) if run.planned else ""
    step = f"step {run.step}" + (f"/{run.planned}" if run.planned else "")
    table.add_row(
        Text(command.printable(run.name), "bold"), Text(run.state, STYLES[run.state]), step, bar, "  ".join(times)
    )
    return table


def _notes(run: Run) -> list[Text]:
    """Return what a user should know besides the numbers."""
    notes = [f"{lines.broken} broken lines in {lines.path.name}" for lines in run.progress.files if lines.broken]
    if run.progress.lost.count:
        notes.append(f"lost: {run.progress.lost.describe()}")
    notes += filter(None, (run.config_fault, run.about_judge))
    if run.state == RUNNING and not run.has_stepped:
        notes.append("the run is starting")
    if run.state in (CRASHED, STOPPED):
        notes.append(f"{run.cause or 'its end was not recorded'}; see {run.files.logs / 'driver.log'}")
        notes.append(describe_continuation(run.folder, run.ckpt_path))
    return [Text(command.printable(note), "yellow") for note in notes]


def _findings(run: Run) -> list[RenderableType]:
    findings = diagnose(run.metrics, run.evals, run.config)
    found = alarms(findings)
    if not found:
        return [Text(describe_no_alarm(findings, len(run.metrics)))]
    styles = ("bold yellow", "bold red")
    return [Text(command.printable(each.headline()), styles[each.severity == CRITICAL]) for each in found]


def _cell(name: str, points: Points) -> Text:
    """Return name, curve and last value of a metric; one outside its range is marked."""
    last = points[-1][1]
    low, high = (BY_NAME[name].healthy if name in BY_NAME else None) or (None, None)
    is_healthy = (low is None or last >= low) and (high is None or last <= high)
    cell = Text(f"{command.printable(name)[:26]:<26} ").append(draw_curve([value for _, value in points]), "cyan")
    return cell.append(f" {last:>9.4g}{' ' if is_healthy else '!'}", "bold" if is_healthy else "bold red")


def draw_curve(values: Sequence[float]) -> str:
    """Return a curve of CURVE characters, from the smallest value to the largest; of several steps it has the mean."""
    size = max(1, -(-len(values) // CURVE))
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return (BARS[3] * len(means)).ljust(CURVE)
    return "".join(BARS[round((mean - low) / (high - low) * 7)] for mean in means).ljust(CURVE)


def _rollouts(run: Run) -> list[RenderableType]:
    """Return the most informative rollouts of the newest step: the end of the prompt, and of the response."""
    files = list(run.files.sample_files("step").items())
    if not files:
        return []
    width = max(20, shutil.get_terminal_size().columns - 13)
    lines: list[RenderableType] = [_title(f"Rollouts of step {files[-1][0]}")]
    for row, why in list_extremes(read_samples(files[-1][1]))[:3]:
        lines.append(Text(why, "bold"))
        for name in ("prompt", "response"):
            text = command.printable(" ".join(MARKER.sub(" ", str(row.get(name, ""))[-2000:]).split()))
            shown = text if len(text) <= width else f"…{text[-width:]}"
            lines.append(Text(f"  {name:<9} {shown}", no_wrap=True, overflow="ellipsis"))
    return lines


def follow(run: Run, console: Console, every: float) -> None:
    """Show a run until it ends, refreshed every few seconds."""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while run.state == RUNNING:
            live.update(draw(run), refresh=True)
            time.sleep(every)
            run.refresh()


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.watch", __doc__)
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    parser.add_argument("--once", action="store_true", help="print the view and exit")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="between updates (default: 2)")
    options = parser.parse_args(argv)
    logging.getLogger("grpo").setLevel(logging.ERROR)  # broken lines are counted in the view
    try:
        run = Run(options.folder)
        console = Console(highlight=False)
        if console.is_terminal and not options.once:
            follow(run, console, options.every)
        console.print(draw(run))
        if run.state != RUNNING:
            print(*map(command.printable, run.progress.results(run.folder, run.save_path, run.ckpt_path)), sep="\n")
    except (UserError, OSError) as error:
        print(f"watch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    # Restores the terminal before the process ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command.run(main, draws=True)
