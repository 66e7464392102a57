"""Grade the samples of an evaluation again, without an engine, after the grader or the evaluation's own reward changed.

    python -m eval.regrade DIR

An evaluation with --reward is scored by the same files again, which config.json names. Nothing changes if one is
gone, or if no evaluation of this checkout has named it with --reward for DIR.

Exit code: 0 done, 1 some samples have no grade or score, 2 refused: nothing was written.
"""

import sys
from pathlib import Path

from eval import own_reward
from eval.output import read_config, write_result
from eval.table import result_table
from grpo.stack import command
from grpo.stack.problem import UserError


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("eval.regrade", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of an evaluation")
    try:
        folder = parser.parse_args(argv).folder
        config = read_config(folder)
        own_reward.refuse_others(folder, own_reward.read_config(config))
        scored_by = own_reward.identify_files(config)
        result = write_result(folder)
        if own_reward.identify_files(read_config(folder)) != scored_by:
            print("eval.regrade: the reward has changed since the samples were scored", file=sys.stderr)
    except (UserError, OSError) as error:
        print(f"eval.regrade: {error}", file=sys.stderr)
        return 2
    print("\n".join(result_table(result)))
    return 1 if result["ungraded"] else 0


if __name__ == "__main__":
    command.print_plainly()
    sys.exit(main())
