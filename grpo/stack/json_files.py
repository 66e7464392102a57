"""Files written whole or not at all, and JSON. Every reader of files that others may have written uses this module.

Reading a named pipe or a device in a file's place would never end, so only regular files are opened.
"""

import errno
import glob
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader, BufferedWriter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, overload

Types = Mapping[str, type | tuple[type, ...]]
MakeObject = Callable[[list[tuple[str, Any]]], Any]
logger = logging.getLogger(__name__)
_LARGEST = 2 << 30  # bytes
_LONGEST = 256 << 20  # bytes of a line


_TOO_LONG = re.compile(r"\d{309}")


@overload
def open_file(path: Path, mode: Literal["ab"]) -> BufferedWriter: ...
@overload
def open_file(path: Path, mode: Literal["rb"] = ...) -> BufferedReader: ...
def open_file(path: Path, mode: str = "rb") -> BufferedWriter | BufferedReader:
    """Open a regular file. Raises OSError if it cannot be opened, or is no regular file."""
    file: Any = open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o644))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file; remove it, or restore a copy", str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises OSError as :func:`open_file` and :func:`read_rest`."""
    with open_file(path) as file:
        return read_rest(file)


def read_rest(file: BufferedReader) -> bytes:
    """Return what follows in a file. Raises OSError if it is more than a run or a model ever has in one."""
    if os.fstat(file.fileno()).st_size - file.tell() > _LARGEST:
        raise OSError(errno.EFBIG, "larger than 2 GiB", str(file.name))
    return file.read()


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError as :func:`read_bytes`, ValueError if it holds no JSON."""
    return _load(read_bytes(path).decode())


def _load(text: str, make_object: MakeObject | None = None) -> Any:
    try:
        if _TOO_LONG.search(text):  # perhaps in a text
            json.loads(text, parse_int=_check_digits)
        value = json.loads(text, object_pairs_hook=make_object)
        if "\\ud" in text or "\\uD" in text:  # half a character, which no file and no tokenizer takes
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_digits(number: str) -> int:
    """Return a whole number. Raises ValueError for one that no calculation takes, since no float is as large."""
    if abs(value := int(number)) > sys.float_info.max:
        raise ValueError(f"it has a number of {len(number)} digits")
    return value


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of names and values. Raises ValueError for a name that stands twice: one would be lost."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has the key {max(names, key=names.count)!r} twice")
    return value


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
                yield number, _load(line.decode(encoding), make_object)
            except ValueError as error:
                yield number, error


def numbered_rows(
    path: Path, encoding: str = "utf-8", make_object: MakeObject | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file that a user gives, as :func:`parse`.

    Raises OSError as :func:`open_file`, and for a line longer than 256 MiB.
    """
    with open_file(path) as file:
        yield from parse(_lines(file), encoding, make_object)


def _lines(file: BufferedReader) -> Iterator[bytes]:
    while line := file.readline(_LONGEST + 1):
        if len(line) > _LONGEST:
            raise OSError(errno.EFBIG, "it has a line longer than 256 MiB", str(file.name))
        yield line


def read_rows(path: Path, types: Types = MappingProxyType({})) -> list[dict[str, Any]]:
    """Return the objects in a file that a run writes, one per complete line; [] if the file is missing.

    A kill or a full disk may have truncated a line. Such lines are left out, as are those that hold no object.

    Args:
        types: of fields. An object in which one has another value, not None, is left out.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return []
    return complete_rows(data, path, types)[0]


def complete_rows(data: bytes, path: Path, types: Types = MappingProxyType({})) -> tuple[list[dict[str, Any]], int]:
    """Return the objects in a file's complete lines, and the number of other lines, which are logged."""
    values = [value for _, value in parse(data[: data.rfind(b"\n") + 1].split(b"\n"))]
    rows = [value for value in values if isinstance(value, dict) and has_types(value, types)]
    broken = len(values) - len(rows)
    if broken:
        logger.warning("%s has %d broken line(s), which are left out", path, broken)
    return rows, broken


def has_types(row: Mapping[str, Any], types: Types) -> bool:
    """Say whether each of these fields has its type, is None or is missing."""
    return all(row.get(name) is None or isinstance(row[name], kind) for name, kind in types.items())
