"""Reads prepared data files: JSON lines with a prompt and a label."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from reward.labels import parse_label

LABELS = {
    "train": 'a label of TRAIN_DATA is the gold answer, or JSON: {"answer": "42", "split": "train"}',
    "eval": 'a label of EVAL_DATA is JSON: {"answer": "42", "split": "eval"}',
}


class DataError(ValueError):
    """An invalid data file; the message names the line.

    Attributes:
        remedy: what to do; "" if another file is needed.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy


class Record(NamedTuple):
    """One record of a data file: its line (from 1), its prompt as JSON, and its id ("" if missing)."""

    line: int
    prompt: str
    id: str


def read_records(path: Path, input_key: str, label_key: str | None, split: str | None = None) -> list[Record]:
    """Check every line of a `.jsonl` file and return the records.

    Args:
        split: "train" or "eval", which every label must match; None if labels belong to another reward function.

    Raises:
        DataError: if the file is missing or empty, or a line is invalid JSON, lacks a field or has a wrong label.
    """
    if path.suffix != ".jsonl":
        raise DataError(f"{path} is no .jsonl file")
    records = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    record = _parse(line, f"{path}, line {number}", input_key, label_key)
                    if split:
                        _check_label(record.get(label_key), f"{path}, line {number}", split)
                    records.append(Record(number, json.dumps(record[input_key]), str(record.get("id") or "")))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}") from None
    if not records:
        raise DataError(f"{path} is empty")
    return records


def _parse(line: str, where: str, input_key: str, label_key: str | None) -> dict[str | None, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        raise DataError(f"{where}: no JSON") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: no JSON object")
    for key in (input_key, label_key):
        if key and record.get(key) in (None, "", []):
            raise DataError(f"{where}: no {key!r} (fields: {', '.join(record) or 'none'})")
    return record


def _check_label(label: Any, where: str, split: str) -> None:
    from data.problems import is_gold  # imports in half a second, and only our reward function needs it

    remedy = f"{LABELS[split]}; python -m data.prepare --{split} FILE writes such labels"
    try:
        answer, found = parse_label(label)
    except ValueError as error:
        raise DataError(f"{where}: {str(error).partition(';')[0]}", remedy) from None
    if found != split:
        # The reward function decides by the label: it judges train samples and never eval samples.
        what = f"the label is of the {found} split (plain answers are of train), not of {split}"
        raise DataError(f"{where}: {what}", remedy)
    if not is_gold(answer.strip()):
        raise DataError(
            f"{where}: the grader cannot read the answer {answer[:80]!r}, which no response would equal",
            "words go in \\text{...}; python -m data.prepare checks answers, and --skip-bad leaves such problems out",
        )
