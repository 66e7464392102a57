"""Writes the rows of an environment of the verifiers package as train.jsonl and eval.jsonl.

    python -m data.verifiers --environment verifiers:NAME --out DIR [--train N] [--eval N]

The environment is the value of ENVIRONMENT: verifiers:NAME, or a .py file that gives it arguments. The label of a line
is the row as the package has it. An environment without rows of its own for evaluations gives the last of its others.

Exit code: 0 done, 2 refused.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from grpo.environments.environment import load
from grpo.stack import command
from grpo.stack.json_files import replace_rows
from grpo.stack.problem import UserError

Row = dict[str, Any]


def write(name: str, out: Path, train: int | None, held_out: int) -> dict[str, int]:
    """Write both files with at most `train` (None: all) and `held_out` lines, and return how many each has.

    Raises UserError if it is no environment of the package, or has too few rows.
    """
    kind = load(name)
    if not hasattr(kind, "loaded_environment"):
        raise UserError(f"{name} is not an environment of the verifiers package", "name it as verifiers:NAME")
    from grpo.environments.verifiers_environment import rows

    own, evaluated = rows(cast(Any, kind))
    if evaluated is None:
        own, evaluated = own[:-held_out], own[-held_out:]
    parts = {"train": own[:train], "eval": evaluated[:held_out]}
    if not all(parts.values()):
        raise UserError(f"{name} has {len(own)} rows to train on and {len(evaluated)} for evaluations", "lower --eval")
    out.mkdir(parents=True, exist_ok=True)
    for split, part in parts.items():
        replace_rows(out / f"{split}.jsonl", (_line(split, number, row) for number, row in enumerate(part)))
    return {split: len(part) for split, part in parts.items()}


def _line(split: str, number: int, row: Row) -> Row:
    """Return a line of a data file. Rows may ask the same in the same words, so its prompt begins with their number."""
    asked = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
    return {
        "prompt": f"{split} {number}: {asked}",
        "label": json.dumps(row, ensure_ascii=False, default=str),
        "id": f"{split}-{number}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("data.verifiers", __doc__)
    parser.add_argument("--environment", required=True, help="verifiers:NAME, or a .py file")
    parser.add_argument("--out", required=True, type=Path, help="folder of both files")
    parser.add_argument("--train", type=int, help="lines to train on, at most (default: all)")
    parser.add_argument("--eval", type=int, default=100, help="lines to evaluate on, at most (default: 100)")
    options = parser.parse_args(argv)
    try:
        command.check_counts(options, ("train", "eval"))
        counts = write(options.environment, options.out, options.train, options.eval)
    except UserError as error:
        print(f"data.verifiers: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {counts['train']} lines in train.jsonl, {counts['eval']} in eval.jsonl")
    return 0


if __name__ == "__main__":
    command.run(main)
