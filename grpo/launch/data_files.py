"""Reads prepared data files: JSON lines with a prompt and a label."""

from pathlib import Path
from typing import Any, NamedTuple

from grpo.rollout.problem_files import read_rows
from grpo.stack.counted import format_count
from grpo.stack.problem import UserError
from reward.labels import LabelError, parse_label

LABELS = {
    "train": 'a label of TRAIN_DATA is the gold answer, or JSON: {"answer": "42", "split": "train"}',
    "eval": 'a label of EVAL_DATA is JSON: {"answer": "42", "split": "eval"}',
}
_NAME = "name a .jsonl file; python -m data.prepare writes one"
_LISTED = 20  # of the lines with a fault


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
        UserError: if the file is missing or empty, or a line is invalid JSON, lacks a field or has a wrong label. It
            describes the first fault, and lists the other lines with one.
    """
    if path.suffix != ".jsonl":
        raise UserError(f"{path} is not a .jsonl file", _NAME)
    records, wrong = [], dict[int, UserError]()
    try:
        for number, row in read_rows(path, input_key, label_key):
            try:
                if isinstance(row, UserError):
                    raise row
                if split:
                    _check_label(row.get(label_key or ""), f"{path}, line {number}", split)
            except UserError as error:
                wrong[number] = error
                continue
            records.append(Record(number, row[input_key], str(row.get("id") or "")))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist", _NAME) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", _NAME) from None
    if wrong:
        first, *others = wrong
        problem = wrong[first].problem
        listed = ", ".join(map(str, others[:_LISTED])) + (", ..." if len(others) > _LISTED else "")
        more = f"; {format_count(len(others), 'other line')} with a fault: {listed}"
        raise UserError(problem.what + (more if others else ""), problem.remedy)
    if not records:
        raise UserError(f"{path} is empty", _NAME)
    return records


def _check_label(label: Any, where: str, split: str) -> None:
    # Imports in half a second, and only our reward function needs it
    from data.golds import is_gold

    remedy = f"{LABELS[split]}; python -m data.prepare writes such labels"
    try:
        answer, label_split = parse_label(label)
    except LabelError as error:
        raise UserError(f"{where}: {error.what}", remedy) from None
    if label_split != split:
        # The reward function decides by the label: it judges train samples and never eval samples.
        what = f"the label belongs to the {label_split} split, not to {split} (a plain answer counts as train)"
        raise UserError(f"{where}: {what}", remedy)
    if not is_gold(answer.strip()):
        raise UserError(
            f"{where}: the grader cannot read the answer {answer[:80]!r}, so every response would be wrong",
            "write numbers in digits, and put words and dates in \\text{...}; python -m data.prepare --skip-bad leaves "
            "out such problems, and a reward of your own (REWARD) reads any label",
        )
