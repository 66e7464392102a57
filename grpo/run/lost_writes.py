"""What a run could not write: the trainer counts it, the launcher tells the user.

The file lies beside the logs, and its space is reserved at the start: a full disk has none later.
"""

import json
import os
from pathlib import Path

from grpo.stack.command import format_count
from grpo.stack.json_files import read_json

SPACE = 8192  # bytes: a path may have 4,096
LOSSY = 1  # the exit code of a run that has made all its steps; it is incomplete in what it wrote


class LostWrites:
    """The count of a run's lost writes, as its file had it at the last call.

    Attributes:
        count: all that were lost and not written again.
        first: the step in which the first of them was lost.
        last: the path of the last one, and why it was not written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.count, self.first, self.last = 0, 0, ""
        self.refresh()

    def begin(self, step: int) -> None:
        """Reserve the space, and forget what a run that continues after `step` writes again.

        Raises:
            OSError: if there is no space.
        """
        if not self.count or self.first > step:
            self.count = 0
            self._file.write_text(" " * SPACE, encoding="utf-8")

    def add(self, step: int, last: str) -> None:
        """Count a write that was lost in `step`.

        Raises:
            OSError: if even this cannot be written.
        """
        self.count, self.first, self.last = self.count + 1, self.first if self.count else step, last
        text = json.dumps({"count": self.count, "first": self.first, "last": last[: SPACE // 2]})
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)  # in place: a new file would need space
        try:
            os.write(descriptor, text.encode().ljust(SPACE))
        finally:
            os.close(descriptor)

    def refresh(self) -> bool:
        """Read the file; return whether more was lost since the last call."""
        before = self.count
        try:
            row = read_json(self._file)
            self.count, self.first, self.last = int(row["count"]), int(row["first"]), str(row["last"])
        except (OSError, ValueError, TypeError, KeyError):  # nothing was lost, the trainer is writing, or not ours
            return False
        return self.count > before

    def describe(self) -> str:
        """Return what was lost, for the user."""
        return f"{format_count(self.count, 'write')} failed since step {self.first} (last: {self.last})"
