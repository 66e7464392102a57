r"""Reads the rows of a source: a local file (JSON, Parquet, or CSV) or a data set of the Hugging Face hub.

It also reads their answers: the text of a column's value, and whether the grader can compare it with other spellings.
With a reward of the user's own (`is_graded` false), an answer is any text, or the JSON of a list or an object.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from grpo.stack.json_files import build_object, numbered_rows, open_file, read_bytes, read_json
from grpo.stack.problem import UserError
from reward.answers import extract_boxed, open_label
from reward.comparison import is_readable
from reward.notation import MAX_ANSWER_CHARS, spell

_PAGE = re.compile(r"/(\d{4})_AIME_(II?)_Problems/Problem_(\d+)\Z")
_EXACT = 2**53  # up to here a float is the integer that was written
# Dates and telephone numbers, which the grader could read as a difference or a quotient.
_GROUPS = re.compile(r"\d+(?:[-\u2010-\u2013]\d+)+|\d+(?:/\d+){2,}")
# Placeholders for a missing answer. The grader would read these, and words of up to three letters, as products.
_MISSING = re.compile(r"n ?/ ?a\.?|n\. ?a\.?|(?:np\.)?nan\.?|nil|null|tb[ad]|<na>")
_WRAPPED = re.compile(r"\$(.+)\$|\\(?:text|mathrm) ?\{([^{}]+)\}")
_WORDS = {"yes", "no", "one", "two", "six", "ten", "inf", "dne", "see", "all", "any"}


class Row(NamedTuple):
    """One row: `location` names file and line, `value` has its columns, or is the ValueError of an unreadable row."""

    location: str
    value: Any


@dataclass(frozen=True)
class HubSet:
    """The training split of a data set of the hub, at a pinned commit; `convert` returns a row in our own columns."""

    repository: str
    revision: str
    rows: int  # an interrupted download may have left fewer
    convert: Callable[[dict[str, Any]], dict[str, Any]]


def _aime(row: dict[str, Any]) -> dict[str, Any]:
    [(year, contest, number)] = _PAGE.findall(row["url"])
    return row | {"year": year, "contest": len(contest), "number": number}


def _math(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"answer": ", ".join(dict.fromkeys(extract_boxed(row["solution"])[0])), "subject": row["type"]}


HUB = {
    "aime": HubSet("AI-MO/aimo-validation-aime", "13f9e12f613e720c2a2b2f345dd04b998a29494d", 90, _aime),
    "math": HubSet("EleutherAI/hendrycks_math", "21a5633873b6a120296cce3e2df9d5550074f4a3", 7500, _math),
}


def read_source(name: str) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a file or of a hub set (`aime`, `math`), and the card's entry on their origin.

    Raises UserError if the source as a whole cannot be read.
    """
    if name in HUB:
        return _read_hub(HUB[name])
    path = Path(name)
    read = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".csv": _table, ".tsv": _table}
    if not path.is_file() or path.suffix not in read:
        fault = "has an unknown file type" if path.is_file() else "is not a file"
        known = ", ".join((*HUB, "synthetic"))
        raise UserError(f"{name} {fault}", f"give a {', '.join(read)} file, or one of {known}")
    rows = list(read[path.suffix](path))
    if not rows:
        raise UserError(f"{name} is empty", "give a file with a row for each problem")
    with open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return rows, {"file": path.name, "rows": len(rows), "sha256": digest}


def _read_hub(hub: HubSet) -> tuple[list[Row], dict[str, Any]]:
    from httpx import HTTPError  # slow to import, and only needed for the hub
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"repo_type": "dataset", "revision": hub.revision}
    again = f"hf download {hub.repository} --repo-type dataset --revision {hub.revision}"
    try:
        folder = Path(snapshot_download(hub.repository, allow_patterns="*/train-*.parquet", **options))
    except (OSError, HTTPError) as error:
        raise UserError(
            f"{hub.repository} could not be loaded ({type(error).__name__})",
            f"without network, run on a machine that has it: {again}; then copy its cache (HF_HOME) here. Or give a "
            "file of your own",
        ) from error
    rows: list[Row] = []
    for path in sorted(folder.glob("*/train-*.parquet")):
        for _, value in _parquet(path):
            rows.append(Row(f"{hub.repository}, row {len(rows) + 1}", hub.convert(value)))
    if len(rows) != hub.rows:
        raise UserError(
            f"{hub.repository} has {len(rows)} of {hub.rows} rows in {folder}", f"download it again: {again}"
        )
    return rows, {"hub": hub.repository, "revision": hub.revision, "rows": len(rows)}


def _json_lines(path: Path) -> Iterator[Row]:
    # Windows writes a byte order mark.
    for number, value in numbered_rows(path, encoding="utf-8-sig", make_object=build_object):
        is_bad = isinstance(value, ValueError)
        yield Row(f"{path}, line {number}", ValueError(f"is not JSON ({value})") if is_bad else value)


def _json(path: Path) -> Iterator[Row]:
    try:
        if not isinstance(rows := read_json(path), list):
            raise ValueError("it is no list")
    except ValueError as error:
        what = f"{path} is not a list of problems in JSON ({error})"
        raise UserError(what, "give a list, or a .jsonl file of problems") from error
    for number, row in enumerate(rows, 1):
        yield Row(f"{path}, row {number}", row)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet  # slow to import, and rarely needed

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a parquet file ({error})", "give another file") from error
    for index, field in enumerate(table.schema):
        if field.type in (pyarrow.float16(), pyarrow.float32()):  # 0.1 stays 0.1, not 0.10000000149011612
            exact = table[index].cast(pyarrow.string()).cast(pyarrow.float64())
            table = table.set_column(index, field.name, exact)
    for number, row in enumerate(table.to_pylist(), 1):
        yield Row(f"{path}, row {number}", row)


def _table(path: Path) -> Iterator[Row]:
    """Yield the rows of a table with a header. Its separator is the most frequent of comma, semicolon and tab there."""
    try:
        text = read_bytes(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason})", "save it as CSV in UTF-8") from error
    csv.field_size_limit(2**31 - 1)
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = next(reader, [])
        if doubled := [name for name in header if header.count(name) > 1]:
            raise UserError(f"{path} has the column {doubled[0]!r} twice", "rename one of them")
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                fault = ValueError(f"has {len(cells)} cells, but the header has {len(header)}: {', '.join(header)}")
                is_whole = len(cells) == len(header)
                yield Row(f"{path}, line {line}", dict(zip(header, cells, strict=True)) if is_whole else fault)
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV ({error})", "close its quotes") from error


def read_answer(value: Any, column: str, after: str | None = None, is_graded: bool = True) -> str:
    """Return the answer of a row as text; `after` is what precedes it in the column. Raises ValueError with the fault.

    The value is a scalar, a list of one, or a label that `data.prepare` has written.
    """
    match open_label(value):
        case {"answer": answer, **others} if others.keys() <= {"split"}:
            value = answer
    if is_graded and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or value != value:  # pandas writes NaN for no value
        raise ValueError(f"has no answer in its column {column!r}")
    try:
        is_json = not is_graded and isinstance(value, dict | list)
        text = json.dumps(value, ensure_ascii=False, default=to_text) if is_json else to_text(value)
    except TypeError as error:
        raise ValueError(f"has in its column {column!r} {error}") from error
    if after:
        _before, marker, text = text.rpartition(after)
        if not marker:
            raise ValueError(f"has no {after!r} in its column {column!r}")
        text = text.strip()
    if not text.strip():
        raise ValueError(f"has no answer in its column {column!r}")
    return _check_gold(text.strip()) if is_graded else text


def to_text(value: Any) -> str:
    """Return a scalar as a person would write it. Raises TypeError, with its type and value, for anything else."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case float() if abs(value) > _EXACT:
            raise TypeError(f"the float {value!r}, which is rounded: write the answer's digits as a text")
        case float() | Decimal():
            text = f"{Decimal(repr(value)) if isinstance(value, float) else value:f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        case datetime():
            return str(value).removesuffix(" 00:00:00")
        case int() | date() | time() | timedelta():
            return str(value)
    raise TypeError(f"a value of the type {type(value).__name__}, which is no answer: {value!r:.80}")


def _check_gold(text: str) -> str:
    """Return the gold answer in a text: its last box, or all of it."""
    if "\\boxed" in text or "\\fbox" in text:
        boxed, reason = extract_boxed(text)
        if reason:
            raise ValueError(f"has no answer in its boxes: {reason}")
        text = ", ".join(dict.fromkeys(boxed))
    if not is_gold(text):
        raise ValueError(f"has an answer that the grader cannot read: {text[:80]!r}")
    return text


def _is_missing(answer: str) -> bool:
    while match := _WRAPPED.fullmatch(answer := answer.strip()):
        answer = match[1] or match[2]
    return answer == "NA" or bool(_MISSING.fullmatch(answer.lower()))


def is_gold(answer: str) -> bool:
    """Say whether the grader understands an answer, and so accepts other spellings of it. It compares nothing."""
    if len(answer) > MAX_ANSWER_CHARS or answer.lower() in _WORDS or _GROUPS.fullmatch(answer) or _is_missing(answer):
        return False
    return is_readable(spell(answer))
