"""Reads the rows of a source: a local file (JSON, Parquet, or CSV) or a data set of the Hugging Face hub."""

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo.stack.json_files import build_object, numbered_rows, read_bytes, read_json
from grpo.stack.problem import UserError
from reward.answers import extract_boxed

_PAGE = re.compile(r"/(\d{4})_AIME_(II?)_Problems/Problem_(\d+)\Z")


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
    return rows, {"file": path.name, "rows": len(rows), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


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
