"""List the runs under a folder, the oldest first, one line each.

    python -m scripts.runs [FOLDER] [--json]

FOLDER is a run, or contains runs at any depth (default: runs/ of this checkout). "correct" is the last step's value on
the training prompts. "s/step" is the median over all steps, without evaluations. With --json, times are in seconds
since 1970.

States: running; finished; stopped by somebody (Ctrl-C, kill, a closed terminal); crashed, which includes runs killed
before they could record it; unreadable.

Exit code: 0 done; 1 a run could not be read (stderr says why); 2 no such folder.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.run.measure import SCORE, get_value, is_whole, keep_last_measure, read_measure
from grpo.run.progress import is_number
from grpo.run.run_files import RunFiles
from grpo.run.run_state import Run
from grpo.stack import command
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

DONE, INCOMPLETE, REFUSED = range(3)
UNREADABLE = "unreadable"
_EVAL = ("step", "ci_low", "ci_high", "n", "problems")


def find(folder: Path) -> Iterator[Path]:
    """Yield the run directories at and under a folder, and folders that may not be read.

    Runs do not nest, and links are not followed.
    """
    if not os.access(folder, os.R_OK | os.X_OK) or RunFiles(folder).is_run():
        yield folder
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            yield from find(path)


def summarize(run: Run, root: Path) -> dict[str, Any]:
    """Return the listed values of a run; None if unknown.

    Args:
        root: the folder that the run's name is relative to.
    """
    evals = [{key: row.get(key) for key in (read_measure(row), *_EVAL)} for row in keep_last_measure(run.graded)]
    correct = run.metrics[-1].get("correct") if run.metrics else None
    return {
        **_place(run.folder, root),
        "state": run.state,
        "exit_code": run.code,
        "step": run.step,
        "planned": run.planned,
        "started": run.started,
        "last_line": run.last_line,
        "resumes": len(run.resumes),
        "first_eval": evals[0] if evals else None,
        "last_eval": evals[-1] if evals else None,
        "correct": correct if is_number(correct) else None,
        "seconds_per_step": run.seconds_a_step(last=None),
    }


def unreadable(folder: Path, root: Path) -> dict[str, Any]:
    """Return the same of a run that cannot be read."""
    unknown = ("exit_code", "step", "planned", "started", "last_line", "resumes", "first_eval", "last_eval")
    return {**_place(folder, root), "state": UNREADABLE, **dict.fromkeys((*unknown, "correct", "seconds_per_step"))}


def _place(folder: Path, root: Path) -> dict[str, str]:
    folder, root = folder.resolve(), root.resolve()
    return {"name": folder.name if folder == root else str(folder.relative_to(root)), "folder": str(folder)}


_HEADER = ("name", "state", "steps", "started", "held-out", "correct", "s/step")


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Return the runs as lines, under a header line."""
    lines = [_HEADER, *(_cells(run) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _cells(run: dict[str, Any]) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["started"])) if run["started"] else "-"
    resumed = f" (resumed {run['resumes']}x)" if run["resumes"] else ""
    return (
        command.printable(run["name"]),
        run["state"] + resumed,
        f"{'?' if run['step'] is None else run['step']}/{run['planned'] or '?'}",
        started,
        _held_out(run["first_eval"], run["last_eval"]),
        "-" if run["correct"] is None else f"{run['correct']:.3f}",
        "-" if run["seconds_per_step"] is None else f"{run['seconds_per_step']:.1f}",
    )


def _held_out(first: dict[str, Any] | None, last: dict[str, Any] | None) -> str:
    """Return the first value, and the last with its interval; the last alone if the two graded different problems."""
    if not first or not last:
        return "-"
    text = "score " if read_measure(last) == SCORE else ""
    text += (
        f"{get_value(first):.3f} -> " if last["step"] != first["step"] and is_whole(first) and is_whole(last) else ""
    )
    text += f"{get_value(last):.3f}"
    if is_number(last["ci_low"]) and is_number(last["ci_high"]):
        text += f" [{last['ci_low']:.3f}, {last['ci_high']:.3f}]"
    return text if is_whole(last) else f"{text} of {last['n']} of {last['problems']}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.runs", __doc__)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    arguments = parser.parse_args(argv)
    folder = arguments.folder or CHECKOUT / "runs"
    if arguments.folder and not folder.is_dir():
        print(f"runs: {folder} is not a folder: name a folder with runs", file=sys.stderr)
        return REFUSED
    logging.getLogger("grpo").setLevel(logging.ERROR)  # broken lines are skipped; scripts.watch counts them
    runs, code = [], DONE
    for run_dir in find(folder) if folder.is_dir() else ():
        try:
            runs.append(summarize(Run(run_dir), folder))
        except (UserError, OSError) as error:
            code = INCOMPLETE
            runs.append(unreadable(run_dir, folder))
            print(f"runs: {run_dir} cannot be read ({error})", file=sys.stderr)
    runs.sort(key=lambda run: run["started"] or 0.0)
    if arguments.json:
        print(json.dumps(runs, indent=2))
    else:
        print("\n".join(table(runs)) if runs else f"no runs under {folder}")
    return code


if __name__ == "__main__":
    command.run(main)
