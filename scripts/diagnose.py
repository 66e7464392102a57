"""Say what ails a run, from its metrics: findings with evidence, likely cause and what to change; what is in order; and
what could not be judged, and why.

    python -m scripts.diagnose RUN_DIR [--json]

RUN_DIR is that of a run which goes on, has ended, crashed or was resumed. The warm-up of the learning rate is not
judged, nor does the policy loss have to fall: in GRPO it does not. Which pathologies there are, and what each asks for,
is in grpo/diagnosis/rules/.

Exit code: 0 done, whatever was found; 2 no run, or one that cannot be read.
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
    """The command line; returns the exit code."""
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
