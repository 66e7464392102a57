"""A run's own folder for sockets and temporary files: short, private, deleted with the run.

If everything is killed at once, as in a power cut, nobody deletes it. So the launcher and the keeper hold a lock in it,
and the next launch deletes the folders whose lock nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

# A socket path holds at most 107 bytes (unix(7)); Ray adds
# "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store", vLLM "/tmp/<uuid>", to our folder.
MAX_LENGTH = 107 - len("/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.lock")

_PREFIX, _LOCK = "grpo-", "lock"


def make() -> tuple[Path, int]:
    """Create a run's folder, and delete those of runs that were killed.

    Returns:
        The folder, and a file descriptor: the folder is kept while a process has it open.
    """
    parent = tempfile.gettempdir()
    if len(os.path.join(parent, f"{_PREFIX}12345678")) > MAX_LENGTH:
        parent = "/tmp"
    _delete_dead(Path(parent))
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    descriptor = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Only now has it the name of a run's folder: another launch never sees it without its lock.
    return made.rename(made.with_name(made.name.removeprefix("."))), descriptor


def _delete_dead(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # it is no run's folder, or was deleted meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # the run lives
        finally:
            os.close(descriptor)
