"""What lies beside the package: RECORD, and the texts that make upgrades and reverts possible without anything else.

`.openrlhf-originals/` holds OpenRLHF's own texts and those that the tool put in their place, each named by its sha256,
and the wheel's own RECORD. Like an installer, the tool keeps RECORD true: it tells what was left there last.
"""

import base64
import os
import shutil
from pathlib import Path

from patches.series import PACKAGE, Series, sha256


def folder(target: Path) -> Path:
    return target.parent / f".{target.name}-originals"


def read_text(target: Path, digest: str | None) -> bytes | None:
    """Return the kept text with this sha256, None if it is not kept whole."""
    file = folder(target) / (digest or "absent")
    text = file.read_bytes() if file.is_file() else None
    return text if sha256(text) == digest else None


def keep(target: Path, name: str, text: bytes) -> None:
    """Write a file of the folder, in one step and safely on disk."""
    file = folder(target) / name
    if not file.is_file() or file.read_bytes() != text:
        file.parent.mkdir(exist_ok=True)
        aside = file.with_name(f".{name}.new")
        aside.unlink(missing_ok=True)
        write_new(aside, text)
        os.replace(aside, file)


def write_new(file: Path, text: bytes) -> None:
    """Write a file that does not exist yet, safely on disk."""
    with file.open("xb") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def prune(target: Path, series: Series, is_applied: bool) -> None:
    """Forget the texts of earlier releases once all files are of this one; forget all once reverted."""
    if not is_applied:
        shutil.rmtree(folder(target), ignore_errors=True)
    known = {"RECORD", *series.pristine.values(), *series.patched.values()}
    for file in folder(target).glob("*"):
        if file.name not in known:
            file.unlink()


def record(target: Path, version: str) -> Path:
    return target.parent / f"{PACKAGE}-{version}.dist-info" / "RECORD"


def read_record(file: Path) -> dict[str, str] | None:
    """Return the sha256 of each file of the package that a RECORD lists, None if there is no RECORD."""
    if not file.is_file():
        return None
    digests = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        path, _, rest = line.partition(",sha256=")
        if path.startswith(f"{PACKAGE}/") and rest:
            digests[path] = base64.urlsafe_b64decode(rest.partition(",")[0] + "==").hex()
    return digests


def rewrite_record(text: bytes, files: dict[str, bytes | None]) -> bytes:
    """Return a RECORD with the rows of `files` brought up to date: in their place, new ones at the end."""
    end, rows = "\r\n" if b"\r\n" in text else "\n", {}
    for path, new in files.items():
        code = base64.urlsafe_b64encode(bytes.fromhex(sha256(new) or "")).decode().rstrip("=")
        rows[path] = None if new is None else f"{path},sha256={code},{len(new)}"
    lines = [rows.pop(line.partition(",")[0], line) for line in text.decode().splitlines()]
    return (end.join(line for line in (*lines, *rows.values()) if line is not None) + end).encode()
