"""Print evaluations as one table, in the order in which they are named.

    python -m eval.table FOLDER [FOLDER ...]

FOLDER is the --out of `eval.evaluate` or `eval.teacher`, which gives one row, or a run directory,
which gives its base, step 10, step 20, ..., final. Evaluations in a separate --metrics_dir are found through the run's
config.json. The samples behind a run's row are in RUN_DIR/samples/eval_STEP.jsonl; `python -m eval.compare` compares
two such files.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.output import RESULT, read_config
from grpo.run.eval_metric import EXACT_MATCH, NAMES, is_whole, read_eval_metric
from grpo.run.run_files import RunFiles, read_samples, read_steps
from grpo.stack import command
from grpo.stack.json_files import read_json
from grpo.stack.problem import UserError

_SHARES = (
    *(("thinking_truncated", "thinking cut"), ("truncated", "truncated")),
    *(("no_final", "no final"), ("no_answer", "no answer")),
)
_HEADS = NAMES | {EXACT_MATCH: "pass@1"}
_LENGTHS = (("response_length", "tokens"), ("thinking_length", "thinking"), ("answer_length", "answer"))


def table(rows: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return labeled results of :func:`grpo.run.records.summarize` as lines; empty columns are left out.

    Raises:
        UserError: if one of them is something else.
    """
    try:
        ks = sorted({int(k) for _, result in rows for k in result["pass_at_k"]} - {1})
        cells = [{"": label, **_cells(result, ks)} for label, result in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        labels = ", ".join(label for label, _ in rows)
        raise UserError(
            f"one of these is not the result of an evaluation: {labels}", "restore it, or leave it out"
        ) from error
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


def _cells(result: dict[str, Any], ks: Sequence[int]) -> dict[str, str]:
    cells = {
        "problems": str(result["n"]) if is_whole(result) else f"{result['n']} of {result['problems']}",
        "samples": str(result["samples"]),
        _HEADS[read_eval_metric(result)]: _rate(result, read_eval_metric(result)),
    }
    cells |= {f"pass@{k}": _rate(result["pass_at_k"].get(str(k)), "value") for k in ks}
    greedy = result.get("greedy")
    cells["greedy"] = _rate(greedy, read_eval_metric(greedy or {}))
    cells |= {name: _number(result.get(key), ".1%") for key, name in _SHARES}
    cells |= {name: _number(result.get(key), ".0f") for key, name in _LENGTHS}
    return cells | {"ungraded": str(result["ungraded"] or "")}


def _rate(result: dict[str, Any] | None, key: str) -> str:
    if result is None or result[key] is None:
        return ""
    has_interval = result["ci_low"] is not None
    return f"{result[key]:.3f}" + (f" [{result['ci_low']:.3f}, {result['ci_high']:.3f}]" if has_interval else "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def result_table(result: dict[str, Any]) -> list[str]:
    """Return the table of one evaluation: all problems, and each data source if there are several."""
    sources = result["by_source"]
    return table([("all", result), *sources.items()] if len(sources) > 1 else list(sources.items()))


def read_rows(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the labeled results of a run's evaluations, or of the one in an evaluation's folder.

    Raises:
        UserError: if the folder has no result.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "name a run's folder or an evaluation's")
    files = RunFiles(folder)
    rows = read_steps(files.evals)
    if rows:
        labels = ["base" if row["step"] == 0 else f"step {row['step']}" for row in rows]
        if files.final.is_dir() and len(rows) > 1:
            labels[-1] += ", final"
        return list(zip(labels, rows, strict=True))
    read_config(folder)
    if not (folder / RESULT).is_file():
        raise UserError(f"{folder} is not finished", "continue it with the command that started it")
    return [(str(folder), read_json(folder / RESULT))]


def read_all_rows(folders: Sequence[Path]) -> list[tuple[str, dict[str, Any]]]:
    """Return the labeled results of all folders. With several runs, the rows of each begin with its folder."""
    rows = {folder: read_rows(folder) for folder in folders}
    runs = [folder for folder in folders if read_steps(RunFiles(folder).evals)]
    named = runs if len(runs) > 1 else ()
    return [(f"{f} {label}" if f in named else label, row) for f, part in rows.items() for label, row in part]


def read_problem_ids(folder: Path) -> set[str] | None:
    """Return the ids of the problems that a run or an evaluation is graded on; None for a run without its samples."""
    files = RunFiles(folder)
    if samples := list(files.sample_files("eval").values()):
        return {str(row.get("id")) for row in read_samples(samples[-1])}
    return None if read_steps(files.evals) else set(read_config(folder)["problems"])


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = command.parser("eval.table", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    folders = parser.parse_args(argv).folders
    try:
        lines = table(read_all_rows(folders))
        first = read_problem_ids(folders[0])
        for folder in folders[1:]:
            if None not in (first, other := read_problem_ids(folder)) and other != first:
                print(f"eval.table: warning: {folder} has other problems than {folders[0]}", file=sys.stderr)
    except (UserError, OSError) as error:
        print(f"eval.table: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    command.run(main)
