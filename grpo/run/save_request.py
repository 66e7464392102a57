"""The launcher asks the trainer to save a checkpoint now: a file in the run directory until it is done."""

import contextlib
from pathlib import Path

LONGEST = 300  # bytes of the reason for a failure


class SaveRequest:
    """A request for a checkpoint of the last completed step.

    Args:
        file: exists as long as the request is open, or holds the reason for a failure. Space for the reason is reserved
            at the start, since a full disk has none later.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def ask(self) -> None:
        """Open the request."""
        self._file.touch()
        with contextlib.suppress(OSError):  # a full disk: the checkpoint may be on another one
            self._file.write_text(" " * LONGEST, encoding="utf-8")

    def is_open(self) -> bool:
        """Tell whether a checkpoint is asked for."""
        return self._file.exists() and not self.failure()

    def fail(self, why: str) -> None:
        """Say that the checkpoint could not be saved."""
        with self._file.open("r+b") as file:
            file.write(why.encode()[:LONGEST])

    def failure(self) -> str:
        """Return why the checkpoint could not be saved; "" if it may still be, or has been."""
        try:
            return self._file.read_text(encoding="utf-8", errors="ignore").strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Say that the newest checkpoint is that of the last completed step; or forget the request."""
        self._file.unlink(missing_ok=True)
