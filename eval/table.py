"""Print the evaluations of a training run as a table: base, step 10, step 20, ..., final.

    python -m eval.table RUN_DIR

Evaluations in a separate METRICS_DIR are found through the run's config.json. The samples behind a row are in
RUN_DIR/samples/eval_STEP.jsonl; `python -m eval.compare` compares two such files.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.run.measure import NAMES, is_whole, of_row
from grpo.run.run_files import RunFiles
from grpo.stack import command
from grpo.stack.json_files import read_rows
from grpo.stack.problem import UserError

_SHARES = (
    *(("thinking_truncated", "thinking cut"), ("truncated", "truncated")),
    *(("no_final", "no final"), ("no_answer", "no answer")),
)
_LENGTHS = (("response_length", "tokens"), ("thinking_length", "thinking"), ("answer_length", "answer"))


def table(rows: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return labelled results of :func:`grpo.run.records.summarise` as lines; empty columns are left out."""
    cells = [{"": label, **_cells(result)} for label, result in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    shown = [name for name in names if any(row.get(name) for row in cells) or not name]
    lines = [shown] + [[row.get(name, "") for name in shown] for row in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in lines
    ]


def _cells(result: dict[str, Any]) -> dict[str, str]:
    cells = {
        "problems": str(result["n"]) if is_whole(result) else f"{result['n']} of {result['problems']}",
        "samples": str(result["samples"]),
        NAMES[of_row(result)]: _rate(result, of_row(result)),
    }
    for k, rate in result["pass_at_k"].items():
        if k != "1":
            cells[f"pass@{k}"] = _rate(rate, "value")
    cells |= {name: _number(result.get(key), ".1%") for key, name in _SHARES}
    cells |= {name: _number(result.get(key), ".0f") for key, name in _LENGTHS}
    return cells | {"ungraded": str(result["ungraded"] or "")}


def _rate(result: dict[str, Any], key: str) -> str:
    if result[key] is None:
        return ""
    has_interval = result["ci_low"] is not None
    return f"{result[key]:.3f}" + (f" [{result['ci_low']:.3f}, {result['ci_high']:.3f}]" if has_interval else "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def result_table(result: dict[str, Any]) -> list[str]:
    """Return the table of one evaluation: all problems, and each data source if there are several."""
    sources = result["by_source"]
    return table([("all", result), *sources.items()] if len(sources) > 1 else list(sources.items()))


def run_table(folder: Path) -> list[str]:
    """Return the table of a training run.

    Raises:
        UserError: if it has no evaluation.
    """
    files = RunFiles(folder)
    rows = read_rows(files.evals)
    if not rows:
        raise UserError(f"{folder} has no evaluation", "name a run directory with an eval.jsonl")
    is_finished = files.final.is_dir()
    labels = ["base" if row["step"] == 0 else f"step {row['step']}" for row in rows]
    if is_finished and len(rows) > 1:
        labels[-1] += ", final"
    return table(list(zip(labels, rows, strict=True)))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    assert __doc__
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m eval.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    try:
        lines = run_table(parser.parse_args(argv).folder)
    except UserError as error:
        print(f"eval.table: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    command.run(main)
