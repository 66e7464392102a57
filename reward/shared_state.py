"""The state of the judge that the processes of a run share: one SQLite file in the run directory.

The state is that of the processes that open the same file, so of one run on one machine: WAL needs a local disk and a
shared clock. Times are seconds of the monotonic clock, which is one for all processes of a machine until it restarts;
a process of another machine gets an error.

diskcache would keep the judgements, but not limits, breakers, and claims, which change in one transaction of all
processes. So one file of our own holds everything.
"""

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A caller waits for a lock of this process and for one of all processes: together not much longer than its deadline.
BUSY_SECONDS, OPEN_SECONDS = 5.0, 30.0
_WAIT_SECONDS = 0.05

_SCHEMA = """
CREATE TABLE IF NOT EXISTS boot (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY, model TEXT, started REAL, expires REAL, tokens INTEGER, running INTEGER);
CREATE INDEX IF NOT EXISTS calls_of_model ON calls (model, started);
CREATE TABLE IF NOT EXISTS models (
    model TEXT PRIMARY KEY, paused_until REAL DEFAULT 0, cap INTEGER, cap_since REAL DEFAULT 0,
    cap_floor INTEGER DEFAULT 1, growths INTEGER DEFAULT 0, refused_since REAL DEFAULT 0,
    failures INTEGER DEFAULT 0, openings INTEGER DEFAULT 0, open_until REAL DEFAULT 0, probe_until REAL DEFAULT 0,
    is_shut INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS judgements (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS flights (key TEXT PRIMARY KEY, owner INTEGER, expires REAL);
CREATE TABLE IF NOT EXISTS means (correct INTEGER PRIMARY KEY, count INTEGER, mean REAL);
"""


class SharedState:
    """A connection to the file, for all threads of this process.

    Args:
        path: the file.
        begins_run: forget all but the judgements: limits, breakers, claims and means are of one start of a run.

    Raises:
        sqlite3.Error: if the file cannot be opened, is not a database, or is in use by another machine.
    """

    def __init__(self, path: Path, begins_run: bool = False) -> None:
        self._lock = threading.Lock()
        self.connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self.connection.row_factory = sqlite3.Row
        self._set_journal()
        # A machine that loses power loses the last judgements, not the file.
        self.connection.execute("PRAGMA synchronous = NORMAL")
        with self.transaction() as connection:
            for table in ("boot", "calls", "models", "flights", "means") if begins_run else ():
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            boot = BOOT_ID.read_text().strip()
            if connection.execute("SELECT id FROM boot").fetchone() is None:
                connection.execute("INSERT INTO boot VALUES (?)", (boot,))
            elif connection.execute("SELECT id FROM boot WHERE id = ?", (boot,)).fetchone() is None:
                raise sqlite3.OperationalError(
                    f"{path} was created on another machine, or before this one was restarted: let all that share the "
                    "judge run on one node, and start or resume the run there"
                )

    def _set_journal(self) -> None:
        """Switch to WAL; SQLite does not wait for other processes that do the same at this moment."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_WAIT_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block alone among all processes, or not at all.

        Raises:
            sqlite3.Error: also if others hold the file for longer than `BUSY_SECONDS`.
        """
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise sqlite3.OperationalError("the threads of this process hold the judge's state for too long")
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # SQLite ends it by itself where the disk is full
                self.connection.execute("ROLLBACK")
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self.connection.close()


class Judgements:
    """Answers that were paid for, and questions that are being asked now."""

    # The mean follows a policy that changes: later samples weigh at least this share.
    MEAN_SAMPLES = 256

    def __init__(self, state: SharedState) -> None:
        self.state = state

    def find_or_claim(self, key: str, deadline: float) -> str | None:
        """Return the answer that is stored under `key`, None if the caller has to get it.

        Wait while another thread or process gets it. A claim ends with :meth:`store` or :meth:`release`, at its
        deadline, or with the process that holds it.

        Raises:
            TimeoutError: if the other one is not done at the `deadline` (monotonic clock).
        """
        while True:
            with self.state.transaction() as connection:
                row = connection.execute("SELECT value FROM judgements WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    return row["value"]
                flight = connection.execute("SELECT * FROM flights WHERE key = ?", (key,)).fetchone()
                if flight is None or flight["expires"] < time.monotonic() or not _is_alive(flight["owner"]):
                    connection.execute("REPLACE INTO flights VALUES (?, ?, ?)", (key, os.getpid(), deadline))
                    return None
            if time.monotonic() + _WAIT_SECONDS >= deadline:
                raise TimeoutError("the same question is being asked, and was not answered before the deadline")
            time.sleep(_WAIT_SECONDS)

    def store(self, key: str, value: str) -> None:
        """Keep an answer, and end the claim."""
        with self.state.transaction() as connection:
            connection.execute("REPLACE INTO judgements VALUES (?, ?)", (key, value))
            connection.execute("DELETE FROM flights WHERE key = ?", (key,))

    def release(self, key: str) -> None:
        """End the claim without an answer."""
        with self.state.transaction() as connection:
            connection.execute("DELETE FROM flights WHERE key = ?", (key,))

    def add_to_mean(self, is_correct: bool, quality: float) -> None:
        """Add a judged sample to the running mean of quality given correctness."""
        with self.state.transaction() as connection:
            row = connection.execute("SELECT * FROM means WHERE correct = ?", (int(is_correct),)).fetchone()
            count, mean = (row["count"], row["mean"]) if row else (0, 0.0)
            count = min(count + 1, self.MEAN_SAMPLES)
            mean += (quality - mean) / count
            connection.execute("REPLACE INTO means VALUES (?, ?, ?)", (int(is_correct), count, mean))

    def mean_quality(self, is_correct: bool) -> float:
        """Return the running mean of quality given correctness, NaN before the first judged sample."""
        with self.state.transaction() as connection:
            row = connection.execute("SELECT mean FROM means WHERE correct = ?", (int(is_correct),)).fetchone()
            return row["mean"] if row else math.nan


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
