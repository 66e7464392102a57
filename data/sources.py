"""Reads the rows of a source: a local file (JSON, Parquet, or CSV) or a data set of the Hugging Face hub."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo.stack.json_files import build_object, numbered_rows
from grpo.stack.problem import UserError


class Row(NamedTuple):
    """One row as read: `location` names file and line, `value` is a ValueError if the row is not JSON."""

    location: str
    value: Any


@dataclass(frozen=True)
class HubSet:
    """A data set of the hub: every configuration's `split`, at a pinned commit."""

    repository: str
    revision: str
    configurations: tuple[str, ...]
    split: str = "train"


HUB = {
    # 90 rows: id, problem, solution, answer, url (.../2022_AIME_I_Problems/Problem_1).
    "aime": HubSet("AI-MO/aimo-validation-aime", "13f9e12f613e720c2a2b2f345dd04b998a29494d", ("default",)),
    # 7,500 rows: problem, level ("Level 5"), type, solution with a boxed answer.
    "math": HubSet(
        "EleutherAI/hendrycks_math",
        "21a5633873b6a120296cce3e2df9d5550074f4a3",
        (
            "algebra",
            "counting_and_probability",
            "geometry",
            "intermediate_algebra",
            "number_theory",
            "prealgebra",
            "precalculus",
        ),
    ),
}


def read_source(name: str) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a file or of a hub set (`aime`, `math`), and the card's entry on their origin.

    Raises UserError if the source as a whole cannot be read.
    """
    if name in HUB:
        return read_hub(HUB[name])
    path = Path(name)
    if not path.is_file():
        known = ", ".join(f"`{known}`" for known in (*HUB, "synthetic"))
        raise UserError(
            f"{name} is not a file", f"give a .jsonl, .json, .parquet, .csv or .tsv file, or one of {known}"
        )
    rows = list(_read_file(path))
    if not rows:
        raise UserError(f"{name} is empty", "give a file with a row for each problem")
    return rows, {"file": path.name, "rows": len(rows), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def read_hub(hub: HubSet) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a hub set; `datasets` uses its cache if they are there.

    Raises UserError if they are neither cached nor downloadable.
    """
    import datasets  # slow to import, and only needed for the hub

    unreachable = None if datasets.config.HF_HUB_OFFLINE else _unreachable(hub)
    if unreachable:
        # Otherwise it would ask six times for each file, with pauses; offline mode still reads its cache.
        datasets.config.HF_HUB_OFFLINE = True
    rows = []
    for configuration in hub.configurations:
        try:
            loaded = datasets.load_dataset(hub.repository, configuration, split=hub.split, revision=hub.revision)
        except Exception as error:  # network, disk and format errors of four libraries, which share no base class
            raise UserError(
                f"{hub.repository} ({configuration}) could not be loaded: "
                f"{unreachable or f'{type(error).__name__}: {error}'}",
                f"without network, run on a machine that has it: hf download {hub.repository} --repo-type dataset "
                f"--revision {hub.revision} --local-dir DIR; then give DIR/*/{hub.split}-*.parquet, or a .jsonl file "
                "of your own",
            ) from error
        origin = f"{hub.repository} ({configuration})"
        rows += [Row(f"{origin}, row {number}", row) for number, row in enumerate(loaded, 1)]
    content = "".join(json.dumps(row.value, sort_keys=True, default=str) + "\n" for row in rows)
    entry = {
        "hub": hub.repository,
        "revision": hub.revision,
        "configurations": list(hub.configurations),
        "split": hub.split,
        "rows": len(rows),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
    }
    return rows, entry


def _unreachable(hub: HubSet) -> str | None:
    """Ask the hub once for a set. Return why it does not answer; None if it does or the set is a folder."""
    from httpx import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if Path(hub.repository).is_dir():
        return None
    try:
        HfApi().dataset_info(hub.repository, revision=hub.revision, timeout=10)
    except HfHubHTTPError:  # any answer counts
        return None
    except (OSError, TransportError) as error:  # OSError: huggingface-hub before 1.0, and its offline mode
        return f"the hub cannot be reached ({type(error).__name__}), and it is not in the cache of data sets"
    return None


def _read_file(path: Path) -> Iterator[Row]:
    read = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".csv": _table, ".tsv": _table}
    if path.suffix not in read:
        raise UserError(f"{path} has an unknown file type", f"use {', '.join(read)}")
    return read[path.suffix](path)


def _json_lines(path: Path) -> Iterator[Row]:
    # Windows writes a byte order mark.
    for number, value in numbered_rows(path, encoding="utf-8-sig", make_object=build_object):
        is_bad = isinstance(value, ValueError)
        yield Row(f"{path}, line {number}", ValueError(f"is not JSON ({value})") if is_bad else value)


def _json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_bytes(), object_pairs_hook=build_object)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} is not JSON ({why})", "give a list of problems, or a .jsonl file") from error
    if not isinstance(rows, list):
        raise UserError(f"{path} is not a list of problems", "give a list, or a .jsonl file of problems")
    for number, row in enumerate(rows, 1):
        yield Row(f"{path}, row {number}", row)


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet  # slow to import, and rarely needed

    try:
        _check_header(path, pyarrow.parquet.read_schema(path).names)
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a parquet file ({error})", "give another file") from error
    for number, row in enumerate(table.to_pylist(), 1):
        yield Row(f"{path}, row {number}", row)


def _table(path: Path) -> Iterator[Row]:
    """Yield the rows of a table with a header. Its separator is the most frequent of comma, semicolon and tab there."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason})", "save it as CSV in UTF-8") from error
    csv.field_size_limit(2**31 - 1)
    separator = max(",;\t", key=(text.splitlines() or [""])[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = next(reader, [])
        _check_header(path, header)
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield Row(f"{path}, line {line}", _named_cells(header, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV ({error})", "close its quotes") from error


def _named_cells(header: Sequence[str], cells: Sequence[str]) -> dict[str, str] | ValueError:
    if len(cells) != len(header):
        return ValueError(f"has {len(cells)} cells, but the header has {len(header)} columns ({', '.join(header)})")
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}


def _check_header(path: Path, names: Sequence[str]) -> None:
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UserError(f"{path} has the column {doubled[0]!r} twice", "rename one of them")
