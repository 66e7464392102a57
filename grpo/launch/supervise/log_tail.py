"""The end of a log, for the user to read."""

import re
from pathlib import Path

from grpo.stack.json_files import open_file

_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def tail(path: Path, count: int) -> list[str]:
    """Return the last lines of a text file without progress bars (tqdm), [] if it is missing."""
    try:
        with open_file(path) as file:
            file.seek(max(0, path.stat().st_size - 200_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = (_TERMINAL_CODE.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n"))
    return [line for line in lines if line and "%|" not in line][-count:]
