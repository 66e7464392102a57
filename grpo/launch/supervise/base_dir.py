"""The own folder of a run, or of an evaluation, for sockets and temporary files: short, private, deleted at the end.

If everything is killed at once, nobody deletes it. So the launcher holds a lock in it, and notes the
run's shared memory in the lock. The next launch deletes what it finds in a lock that nobody holds.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from grpo.launch.supervise import processes
from grpo.stack.machine import SHM

# A socket path holds at most 107 bytes (unix(7)); Ray adds
# "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store", vLLM "/tmp/<uuid>", to our folder.
_ADDED = "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.lock"
_PREFIX, LOCK = "grpo-", "lock-of-a-grpo-run"
LONGEST_PARENT = 107 - len(_ADDED) - len(f"/{_PREFIX}12345678")  # characters of the path that holds the folder


def make() -> tuple[Path, int]:
    """Delete the folders of killed runs, and create one. It stays while a process has its lock's descriptor open."""
    delete_dead()
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
    descriptor = os.open(made / "new", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (made / "new").rename(made / LOCK)  # only now: nobody sees it without its lock
    return made, descriptor


def _parent() -> Path:
    return Path(parent if len(parent := tempfile.gettempdir()) <= LONGEST_PARENT else "/tmp")


def delete(folder: Path) -> None:
    """Delete a run's folder, and the files under /dev/shm whose names its lock has."""
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
        names = (folder / LOCK).read_text(encoding="utf-8").splitlines()
        processes.remove_shared_memory(SHM / Path(name).name for name in names)
    shutil.rmtree(folder, ignore_errors=True)


def delete_dead() -> None:
    """Delete the folders and the shared memory of runs whose launcher was killed."""
    for folder in _parent().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # not a run's folder, or the run lives
            if folder.lstat().st_uid == os.geteuid():
                descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete(folder)
