"""Judgements that were paid for, in a file of the run directory; which are asked for now; and their running means.

One process has the file. A resumed run finds its judgements there; everything else is of one start of a run.
"""

import math
import sqlite3
import threading
import time
from pathlib import Path

# The mean follows a policy that changes: later samples weigh at least this share.
MEAN_SAMPLES = 256


class Judgements:
    """For all threads.

    Args:
        path: the file.

    Raises:
        sqlite3.Error: if the file cannot be opened, or is not a database.
    """

    def __init__(self, path: Path) -> None:
        self._changed = threading.Condition()
        self._asked: set[str] = set()
        self._means: dict[bool, tuple[int, float]] = {}
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")  # a machine that loses power loses the last, not the file
        self._file.execute("CREATE TABLE IF NOT EXISTS judgements (key TEXT PRIMARY KEY, value TEXT)")

    def find_or_claim(self, key: str, deadline: float) -> str | None:
        """Return the answer that is stored under `key`, None if the caller has to get it.

        Wait while another thread gets it. A claim ends with :meth:`end_claim`.

        Raises:
            TimeoutError: if the other one is not done at the `deadline` (monotonic clock).
            sqlite3.Error: if the file cannot be read.
        """
        with self._changed:
            while True:
                row = self._file.execute("SELECT value FROM judgements WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    return row[0]
                if key not in self._asked:
                    self._asked.add(key)
                    return None
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError("the same question is being asked, and was not answered before the deadline")

    def end_claim(self, key: str, value: str | None) -> None:
        """End a claim, and keep the answer if there is one.

        Raises:
            sqlite3.Error: if it could not be kept; the claim has ended all the same.
        """
        with self._changed:
            self._asked.discard(key)
            self._changed.notify_all()
            if value is not None:
                self._file.execute("REPLACE INTO judgements VALUES (?, ?)", (key, value))

    def add_to_mean(self, is_correct: bool, quality: float) -> None:
        """Add a judged rollout to the running mean of quality given correctness."""
        with self._changed:
            count, mean = self._means.get(is_correct, (0, 0.0))
            count = min(count + 1, MEAN_SAMPLES)
            self._means[is_correct] = count, mean + (quality - mean) / count

    def mean_quality(self, is_correct: bool) -> float:
        """Return the running mean of quality given correctness, NaN before the first judged rollout."""
        with self._changed:
            return self._means.get(is_correct, (0, math.nan))[1]

    def close(self) -> None:
        """Close the file."""
        with self._changed:
            self._file.close()
