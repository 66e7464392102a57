"""Shows the least likely tokens that a run was trained on, with their context, in the engine and the trainer.

python -m scripts.logprobs RUN_DIR [--step N] [--count 20] [--apart]

Reads `least_likely_tokens` of each record in samples/step_N.jsonl: `position`, `before`, `token`, `after`, `engine` and
`trainer` (log-probs, nat; null if missing). "!" marks tokens on which the two differ by more than 1 nat.

Exit code: 0 shown, 2 nothing to show.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo.run.run_files import RunFiles
from grpo.stack import command
from grpo.stack.json_files import read_rows

APART = 1.0  # nat


def read(files: RunFiles, step: int | None) -> list[dict[str, Any]]:
    """Return the least likely tokens of a step, or of all steps, each with its `step` and `sample`."""
    return [
        {"step": number, "sample": record.get("sample"), **token}
        for number, file in files.sample_files("step").items()
        if step in (None, number)
        for record in read_rows(file)
        for token in record.get("least_likely_tokens") or ()
    ]


def measure_gap(row: dict[str, Any]) -> float:
    """Return by how much engine and trainer differ on a token; 0 without both log-probs."""
    both = row["engine"] is not None and row["trainer"] is not None
    return abs(row["engine"] - row["trainer"]) if both else 0.0


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each token."""
    yield "  step sample position   engine  trainer  text, with the token in >> <<"
    for row in rows:
        values = (row["engine"], row["trainer"])
        numbers = " ".join(f"{value:8.3f}" if value is not None else f"{'-':>8}" for value in values)
        text = json.dumps(f"{row['before'][-60:]}>>{row['token']}<<{row['after'][:20]}", ensure_ascii=False)
        position = f"{row['step']:5} {row['sample']:6} {row['position']:8}"
        yield f"{'!' if measure_gap(row) > APART else ' '}{position} {numbers}  {text}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("scripts.logprobs", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--step", type=int, help="only this step (default: all steps)")
    parser.add_argument("--count", type=int, default=20, help="number of tokens to show (default: 20)")
    parser.add_argument("--apart", action="store_true", help="show the tokens on which engine and trainer differ most")
    options = parser.parse_args(argv)
    rows = read(RunFiles(options.run_dir), options.step)
    if options.apart:
        rows = sorted(filter(measure_gap, rows), key=measure_gap, reverse=True)
    else:
        rows.sort(key=lambda row: min(row["engine"] or 0.0, row["trainer"] or 0.0))
    if not rows:
        print(f"scripts.logprobs: no such tokens in {options.run_dir}: name a run with finished steps", file=sys.stderr)
        return 2
    print(*table(rows[: options.count]), sep="\n")
    return 0


if __name__ == "__main__":
    command.run(main)
