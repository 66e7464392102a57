"""Reads prepared data files: JSON lines with a prompt and a label."""

import json
from pathlib import Path


class DataError(ValueError):
    """A data file that cannot be trained or evaluated on; the message names the line."""


def count_records(path: Path, input_key: str, label_key: str | None) -> int:
    """Check every line of a `.jsonl` file and return how many there are.

    Raises:
        DataError: where the file is missing or empty, or a line is no JSON or lacks a field.
    """
    if path.suffix != ".jsonl":
        raise DataError(f"{path} is no .jsonl file")
    count = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    _check_record(line, f"{path}, line {number}", input_key, label_key)
                    count += 1
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}") from None
    if count == 0:
        raise DataError(f"{path} is empty")
    return count


def _check_record(line: str, where: str, input_key: str, label_key: str | None) -> None:
    try:
        record = json.loads(line)
    except ValueError:
        raise DataError(f"{where}: no JSON") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: no JSON object")
    for key in (input_key, label_key):
        if key and record.get(key) in (None, "", []):
            raise DataError(f"{where}: no {key!r} (fields: {', '.join(record) or 'none'})")
