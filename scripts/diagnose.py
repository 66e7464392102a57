"""Diagnose a run from its metrics: findings with evidence, likely cause and what to change.

    python -m scripts.diagnose RUN_DIR [--json]

The output also lists what is in order, and what could not be judged, and why. The run may be in progress, ended,
crashed or resumed. Rules about learning leave out the warm-up of the learning rate. No rule expects the policy loss to
fall: in GRPO it does not. The rules are in grpo/diagnosis/rules/.

Exit code: 0 with or without findings; 2 if RUN_DIR holds no run, or an unreadable one.
"""

import argparse
import json
import sys
from pathlib import Path

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import read
from grpo.run.run_state import RunError
from grpo.stack import command


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m scripts.diagnose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        diagnosis = diagnose(read(options.run_dir))
    except (RunError, OSError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    print(json.dumps(diagnosis.as_dict(), indent=2) if options.json else "\n".join(diagnosis.lines()))
    return 0


if __name__ == "__main__":
    command.run(main)
