"""Diagnose a run from its metrics: findings, the numbers that show them, and what to change.

    python -m scripts.diagnose RUN_DIR [--json]

The run may be in progress, ended, crashed or resumed. docs/tuning.md lists the findings.

Exit code: 0 with or without findings; 2 if RUN_DIR is not a run or cannot be read.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from grpo.diagnosis.diagnose import alarms, describe_no_alarm, diagnose
from grpo.run.run_state import RUNNING, Run
from grpo.stack import command
from grpo.stack.problem import UserError


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.diagnose", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        run = Run(options.run_dir)
        if run.config_fault:
            raise UserError(run.config_fault, "repair it, or move it away to diagnose without it")
        if not run.metrics and run.state == RUNNING:
            raise UserError(f"{run.files.metrics} has no complete step yet", "wait for the first one")
        if not run.metrics:
            raise UserError("the run ended before its first step", f"read the end of {run.files.logs / 'driver.log'}")
    except (UserError, OSError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    findings, steps = diagnose(run.metrics, run.evals, run.config), len(run.metrics)
    found = alarms(findings)
    if options.json:
        watched = [asdict(one) for one in findings if one not in found]
        print(json.dumps({"steps": steps, "findings": list(map(asdict, found)), "watched": watched}, indent=2))
        return 0
    print(f"{steps} step{'s' * (steps != 1)}", *([] if found else [describe_no_alarm(findings, steps)]), sep="\n")
    for one in findings:
        print("", command.printable(one.headline()), sep="\n")
        print(*(f"    try {command.printable(change)}" for change in one.remedy), sep="\n")
    return 0


if __name__ == "__main__":
    command.run(main)
