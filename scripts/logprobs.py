"""Shows the least likely tokens that a run was trained on, with their context, in the engine and the trainer.

python -m scripts.logprobs RUN_DIR [--step N] [--count 20] [--apart] [--json]

Reads `least_likely_tokens` of each record in samples/step_N.jsonl: `position`, `before`, `token`, `after`, `engine` and
`trainer` (log-probs, nat; null if missing), as :func:`grpo.metrics.unlikely_tokens.least_likely` returns them. "!"
marks tokens on which the two differ by more than 1 nat. Exit code: 0 shown, 2 nothing to show.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from grpo.stack.json_files import read_rows

APART = 1.0  # nat


def steps_of(run_dir: Path) -> dict[int, Path]:
    """Return the file of each step."""
    files = (run_dir / "samples").glob("step_*.jsonl")
    return {int(file.stem.rpartition("_")[2]): file for file in files}


def read(run_dir: Path, step: int | None, count: int, apart: bool = False) -> list[dict[str, Any]]:
    """Return the least likely tokens of a step, or of all steps, each with its `step`.

    Args:
        apart: return the tokens on which engine and trainer differ most instead; none without the trainer's.
    """
    rows = [
        {"step": number, "sample": record.get("sample"), **token}
        for number, file in sorted(steps_of(run_dir).items())
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
        place = f"{row['step']:5} {row['sample']:6} {row['position']:8}"
        lines.append(f"{'!' if is_apart else ' '}{place} {numbers}  {json.dumps(text, ensure_ascii=False)}")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts.logprobs", description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--step", type=int, help="one step (default: all)")
    parser.add_argument("--count", type=int, default=20, help="tokens to show (default: 20)")
    parser.add_argument("--apart", action="store_true", help="those first on which engine and trainer differ most")
    parser.add_argument("--json", action="store_true", help="one JSON object a token")
    options = parser.parse_args(argv)
    if not (options.run_dir / "samples").is_dir() or options.count < 1:
        there = "--count is 1 or more" if options.count < 1 else f"{options.run_dir} is no run that has samples"
        print(f"scripts.logprobs: {there}", file=sys.stderr)
        return 2
    rows = read(options.run_dir, options.step, options.count, options.apart)
    if not rows:
        what = "step" if options.step is not None and steps_of(options.run_dir) else "run"
        there = f"; there are {', '.join(map(str, sorted(steps_of(options.run_dir))))}" if what == "step" else ""
        print(f"scripts.logprobs: {options.run_dir} has no improbable tokens of this {what}{there}", file=sys.stderr)
        return 2
    print("\n".join(map(json.dumps, rows) if options.json else table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
