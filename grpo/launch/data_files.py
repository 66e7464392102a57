"""Reads prepared data files: JSON lines with a prompt and a label."""

from pathlib import Path
from typing import Any, NamedTuple

from grpo.rollout.problem_files import read_rows
from grpo.stack.problem import UserError
from reward.answers import LabelError, is_gradable, parse_label

_NAME = "name a .jsonl file; python -m data.prepare writes one"


class Record(NamedTuple):
    """One record of a data file: its line (from 1), its prompt (text or messages), and its id ("" if missing)."""

    line: int
    prompt: Any
    id: str


def read_records(path: Path, input_key: str, label_key: str | None, split: str | None = None) -> list[Record]:
    """Check every line of a `.jsonl` file and return the records.

    Args:
        split: "train" or "eval", which every label must match; None if labels belong to another reward function.

    Raises:
        UserError: if the file is missing or empty, or a line is invalid JSON, lacks a field or has a wrong label.
    """
    if path.suffix != ".jsonl":
        raise UserError(f"{path} is not a .jsonl file", _NAME)
    records = []
    try:
        for number, row in read_rows(path, input_key, label_key):
            if split:
                _check_label(row.get(label_key or ""), f"{path}, line {number}", split)
            records.append(Record(number, row[input_key], str(row.get("id") or "")))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist", _NAME) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", _NAME) from None
    if not records:
        raise UserError(f"{path} is empty", _NAME)
    return records


def _check_label(label: Any, where: str, split: str) -> None:
    """Raise UserError for a label that our reward function cannot use: it judges train samples, never eval samples."""
    form = f'{{"answer": "42", "split": "{split}"}}' + (", or the gold answer alone" if split == "train" else "")
    remedy = f"a label of {split.upper()}_DATA is {form}; python -m data.prepare writes such labels, but with "
    remedy += "--labels any, which is for a reward of your own: then set REWARD"
    try:
        answer, label_split = parse_label(label)
    except LabelError as error:
        raise UserError(f"{where}: {error.what}", remedy) from None
    if label_split != split:
        what = f"the label belongs to the {label_split} split, not to {split} (a plain answer counts as train)"
        raise UserError(f"{where}: {what}", remedy)
    if not is_gradable(answer):
        raise UserError(
            f"{where}: the grader cannot read the answer {answer!r}, so every response would be wrong",
            "write numbers in digits, and put words and dates in \\text{...}; python -m data.prepare --skip-bad leaves "
            "out such problems, and a reward of your own (REWARD) reads any label",
        )
