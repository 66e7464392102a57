"""A live view of a run: progress, findings, curves, phase times, the judge, the newest rollouts.

    python -m scripts.watch RUN_DIR [--once] [--every SECONDS]

It only reads the run's files, so any number of viewers may watch. It ends when the run does, with a summary, or on
Ctrl-C. If the output is not a terminal, it prints one line per step and evaluation.

A "!" marks a value outside its healthy range; docs/metrics.md has the ranges and the meaning of each name.
"""

import argparse
import logging
import signal
import sys
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import read_history
from grpo.run.progress import Progress
from grpo.run.run_state import FINISHED, RUNNING, Run
from grpo.stack import command
from grpo.stack.problem import UserError
from scripts.watch.frame import frame, header
from scripts.watch.samples import NewestSamples

DONE, REFUSED = 0, 2


def watch(run: Run, console: Console, every: float) -> None:
    """Follow a run to its end.

    Args:
        every: seconds between two refreshes.
    """
    if console.is_terminal:
        samples = NewestSamples(run.files)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while run.state == RUNNING:
                samples.refresh()
                width, height = console.size
                diagnosis = diagnose(read_history(run))
                live.update(Group(*frame(run, samples, time.time(), width, height, diagnosis)), refresh=True)
                time.sleep(every)
                run.refresh()
    else:
        _print_lines(run, every)
        print(*(line.plain for line in header(run, time.time(), console.width)), sep="\n")


def _print_lines(run: Run, every: float) -> None:
    """Print each step and evaluation once, even if a resumed run rewrites its files."""
    shown: set[str] = set()
    lines = Progress(run.files, run.planned).poll()  # those that `run` has read
    while True:
        new = [line for line in lines if line not in shown]
        shown.update(new)
        if new:
            print(*map(command.printable, new), sep="\n", flush=True)
        if run.state != RUNNING:
            return
        time.sleep(every)
        lines = run.refresh()


def print_frame(run: Run, console: Console) -> None:
    """Print the whole view once."""
    samples = NewestSamples(run.files)
    samples.refresh()
    for line in frame(run, samples, time.time(), console.width, diagnosis=diagnose(read_history(run))):
        console.print(line, no_wrap=True, crop=False)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError("give 0.1 to 3600 seconds")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.watch", __doc__)
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    parser.add_argument("--once", action="store_true", help="print one frame and exit")
    parser.add_argument(
        "--every", type=_seconds, default=2.0, metavar="SECONDS", help="seconds between updates (default: 2)"
    )
    arguments = parser.parse_args(argv)
    logging.getLogger("grpo").setLevel(logging.ERROR)  # broken lines are counted in the view
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these characters shows "?"
    try:
        run = Run(arguments.folder)
        console = Console(highlight=False)
        if not arguments.once:
            watch(run, console, arguments.every)
        if arguments.once or console.is_terminal:
            print_frame(run, console)
        if run.state != RUNNING:
            print(*map(command.printable, run.progress.results(run.folder, run.save_path, run.ckpt_path)), sep="\n")
        if run.state == FINISHED:
            print(command.printable(f"again        {run.files.command}"))
    except (UserError, OSError) as error:
        print(f"watch: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        pass
    return DONE


if __name__ == "__main__":
    # Restores the terminal before the process ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command.run(main, draws=True)
