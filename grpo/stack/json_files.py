"""Files written whole or not at all, and JSON lines whose last line a kill or a full disk may have cut."""

import glob
import json
import logging
import os
from pathlib import Path
from typing import Any

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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON-lines file; [] if it is missing. Truncated lines are left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[:-1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            logger.warning("%s holds a broken line, left by a full disk or a kill", path)
    return rows
