"""Grade the samples of an evaluation again, without an engine, after the grader has changed.

python -m eval.regrade DIR
"""

import argparse
import sys
from pathlib import Path

from eval.output import write_result
from eval.table import result_table
from grpo.stack.problem import UserError


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m eval.regrade", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of an evaluation")
    try:
        result = write_result(parser.parse_args(argv).folder)
    except (UserError, OSError) as error:
        print(f"eval.regrade: {error}", file=sys.stderr)
        return 2
    print("\n".join(result_table(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
