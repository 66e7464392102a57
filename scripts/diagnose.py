"""Diagnose a run from its metrics: findings with evidence, likely cause and remedy.

    python -m scripts.diagnose RUN_DIR [--json]

The output also lists what is in order, and which rules could not be judged and why. The run may be in progress, ended,
crashed or resumed. Rules about learning skip the warmup of the learning rate. No rule expects the policy loss to fall,
because in GRPO it does not. docs/diagnosis.md describes the rules.

Exit code: 0 with or without findings; 2 if RUN_DIR is not a run or cannot be read.
"""

import json
import sys
from pathlib import Path

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.history import read
from grpo.stack import command
from grpo.stack.problem import UserError


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.diagnose", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        diagnosis = diagnose(read(options.run_dir))
    except (UserError, OSError) as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    print(json.dumps(diagnosis.as_dict(), indent=2) if options.json else "\n".join(diagnosis.lines()))
    return 0


if __name__ == "__main__":
    command.run(main)
