"""Shows the least likely tokens that a run was trained on, with their context, in the engine and the trainer.

python -m scripts.logprobs RUN_DIR [--step N] [--count 20] [--apart] [--json]

Reads `least_likely_tokens` of each record in samples/step_N.jsonl: `position`, `before`, `token`, `after`, `engine` and
`trainer` (log-probs, nat; null if missing). "!" marks tokens on which the two differ by more than 1 nat.

Exit code: 0 shown, 2 nothing to show.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from grpo.run.run_files import RunFiles
from grpo.stack import command
from grpo.stack.json_files import read_rows
from grpo.stack.problem import UserError

APART = 1.0  # nat


def read(files: RunFiles, step: int | None, count: int, apart: bool = False) -> list[dict[str, Any]]:
    """Return the least likely tokens of a step, or of all steps, each with its `step`.

    Args:
        apart: return the tokens on which engine and trainer differ most instead; [] without the trainer's log-probs.
    """
    rows = [
        {"step": number, "sample": record.get("sample"), **token}
        for number, file in files.sample_files("step").items()
        if step in (None, number)
        for record in read_rows(file)
        for token in record.get("least_likely_tokens") or ()
    ]
    if apart:
        both = [row for row in rows if row["engine"] is not None and row["trainer"] is not None]
        return sorted(both, key=lambda row: -abs(row["engine"] - row["trainer"]))[:count]
    return sorted(rows, key=lowest)[:count]


def lowest(row: dict[str, Any]) -> float:
    """Return the smaller log-prob of a token."""
    return min(value for value in (row["engine"], row["trainer"], 0.0) if value is not None)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line for each token."""
    lines = ["  step sample position   engine  trainer  text, with the token in >> <<"]
    for row in rows:
        engine, trainer = row["engine"], row["trainer"]
        is_apart = engine is not None and trainer is not None and abs(engine - trainer) > APART
        numbers = " ".join(f"{value:8.3f}" if value is not None else f"{'-':>8}" for value in (engine, trainer))
        text = f"{row['before'][-60:]}>>{row['token']}<<{row['after'][:20]}"
        position = f"{row['step']:5} {row['sample']:6} {row['position']:8}"
        lines.append(f"{'!' if is_apart else ' '}{position} {numbers}  {json.dumps(text, ensure_ascii=False)}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.logprobs", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--step", type=int, help="only this step (default: all steps)")
    parser.add_argument("--count", type=int, default=20, help="number of tokens to show (default: 20)")
    parser.add_argument("--apart", action="store_true", help="show the tokens on which engine and trainer differ most")
    parser.add_argument("--json", action="store_true", help="print one JSON object per token")
    options = parser.parse_args(argv)
    try:
        rows = _rows(options)
    except UserError as error:
        print(f"scripts.logprobs: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(json.dumps, rows) if options.json else table(rows)))
    return 0


def _rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the tokens to show. Raises UserError if there are none."""
    files = RunFiles(options.run_dir)
    steps = files.sample_files("step")
    if options.count < 1:
        raise UserError(f"--count is {options.count}", "give 1 or more")
    if not steps:
        raise UserError(f"{options.run_dir} has no samples", "name a run directory with finished steps")
    if options.step is not None and options.step not in steps:
        raise UserError(
            f"{options.run_dir} has no samples of step {options.step}", f"name one of {', '.join(map(str, steps))}"
        )
    rows = read(files, options.step, options.count, options.apart)
    if not rows:
        raise UserError(f"the samples of {options.run_dir} have no such tokens", "try without --apart, or another step")
    return rows


if __name__ == "__main__":
    command.run(main)
