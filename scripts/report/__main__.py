"""Write one HTML file that shows runs: results, curves, phases, settings, samples. It needs no network.

    python -m scripts.report RUN_DIR [RUN_DIR ...] [--out FILE]

Runs may be in progress, ended in any way, resumed, or from other versions. Several runs share each chart. The report
compares their settings, and their last evaluation with that of the first run, paired by problem.

Exit code: 0 done, 2 a directory is not a run, or the file cannot be written.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.diagnosis.diagnose import diagnose
from grpo.run.run_state import Run
from grpo.stack import command, json_files
from grpo.stack.problem import UserError
from scripts.report.page import render

NAME = "report.html"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.report", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"default: {NAME} in the first RUN_DIR")
    options = parser.parse_args(argv)
    out = options.out or options.folders[0] / NAME
    try:
        runs = read_runs(options.folders)
        diagnoses = {run.name: diagnose(run.metrics, run.evals, run.config) for run in runs}
        page = render(runs, diagnoses)
    except (UserError, OSError) as error:
        print(f"scripts.report: {error}", file=sys.stderr)
        return 2
    try:
        json_files.replace(out, page)
    except OSError as error:
        print(f"scripts.report: {out} cannot be written ({error.strerror}): give another --out", file=sys.stderr)
        return 2
    print(out)
    return 0


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the directories, each under as many last parts of its path as tell it from the others.

    Raises:
        UserError: if one is not a run directory, or is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise UserError("a run is named twice", "name each run once")
    depth = 1
    while len(names := {path: "/".join(path.parts[-depth:]) for path in paths}) > len(set(names.values())):
        depth += 1
    return [Run(path, names[path]) for path in paths]


if __name__ == "__main__":
    command.run(main)
