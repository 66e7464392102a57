"""Files written whole or not at all, and JSON lines. Every reader of JSON lines uses this module."""

import errno
import glob
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MakeObject = Callable[[list[tuple[str, Any]]], Any]
logger = logging.getLogger(__name__)


def replace(path: Path, text: str) -> None:
    """Write a file whole, or leave the old one unchanged. A failure leaves nothing else behind.

    The next call for the same file removes the temporary file that a kill leaves.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        writer = left.name.rpartition(".")[2]
        if writer.isdigit() and not Path("/proc", writer).exists():
            left.unlink(missing_ok=True)
    try:
        aside.write_bytes(text.encode())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def replace_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines whole, as :func:`replace`."""
    replace(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def parse(
    lines: Iterable[bytes], encoding: str = "utf-8", make_object: MakeObject | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield number, from 1, and value of each line that is not blank. The value of an invalid line is its ValueError.

    Args:
        lines: separated at line feeds alone: a JSON text may contain other line separators of Unicode.
        make_object: makes an object of its names and values; None for a dictionary.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line.decode(encoding), object_pairs_hook=make_object)
            except ValueError as error:
                yield number, error
            except RecursionError:
                yield number, ValueError("it is nested too deeply")


def numbered_rows(
    path: Path, encoding: str = "utf-8", make_object: MakeObject | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file that a user gives, as :func:`parse`.

    Raises:
        OSError: if the file cannot be read, or is a pipe, which can be read only once.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        yield from parse(file, encoding, make_object)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file that a run writes, one per complete line; [] if the file is missing.

    A kill or a full disk may have truncated a line. Such lines are left out, as are those that hold no object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return complete_rows(data, path)[0]


def complete_rows(data: bytes, path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the objects in a file's complete lines, and the number of other lines, which are logged."""
    values = [value for _, value in parse(data[: data.rfind(b"\n") + 1].split(b"\n"))]
    rows = [value for value in values if isinstance(value, dict)]
    broken = len(values) - len(rows)
    if broken:
        logger.warning("%s has %d broken line(s), left by a full disk or a kill", path, broken)
    return rows, broken
