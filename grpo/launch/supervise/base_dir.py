"""The own folder of a run, or of an evaluation, for sockets and temporary files: short, private, deleted at the end.

If everything is killed at once, as in a power cut, nobody deletes it. So the launcher holds a lock in it. The next
launch deletes the folders with the mark of a run in a lock that nobody holds, and the shared memory that their launcher
has noted.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from grpo.launch.supervise import processes
from grpo.stack import machine
from grpo.stack.json_files import replace

# A socket path holds at most 107 bytes (unix(7)); Ray adds
# "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store", vLLM "/tmp/<uuid>", to our folder.
_ADDED = "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.lock"
_PREFIX, _LOCK, _SHARED_MEMORY = "grpo-", "lock", "shared-memory"
_MARK = b"the folder of a GRPO run: the next launch deletes it once nobody holds this lock\n"
# Characters of the longest path that may hold the folder; 8 of the folder's name are random.
LONGEST_PARENT = 107 - len(_ADDED) - len(f"/{_PREFIX}12345678")


def make() -> tuple[Path, int]:
    """Create a run's folder, and delete those of runs that were killed.

    Returns:
        The folder, and the file descriptor of its lock. The folder stays while a process has the descriptor open.
    """
    delete_dead()
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=_parent()))
    descriptor = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, _MARK)
    # It gets the name of a run's folder only now, so that no other launch sees it without its lock.
    return made.rename(made.with_name(made.name.removeprefix("."))), descriptor


def _parent() -> Path:
    parent = tempfile.gettempdir()
    return Path(parent if len(parent) <= LONGEST_PARENT else "/tmp")


def note_shared_memory(folder: Path, files: Iterable[Path]) -> None:
    """Note the run's files under /dev/shm, for whoever cleans up after a launcher that was killed."""
    with contextlib.suppress(OSError):  # a full disk: they stay only if the launcher is killed, too
        replace(folder / _SHARED_MEMORY, "\n".join(sorted(file.name for file in files)))


def shared_memory(folder: Path) -> set[Path]:
    """Return what :func:`note_shared_memory` has noted."""
    file = folder / _SHARED_MEMORY
    names = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {machine.SHM / Path(name).name for name in names if name}


def delete_dead() -> None:
    """Delete the folders and the shared memory of runs whose launcher was killed."""
    for folder in _parent().glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:  # not a run's folder, or deleted meanwhile
            continue
        try:
            with contextlib.suppress(BlockingIOError):  # the run lives
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.read(descriptor, len(_MARK) + 1) == _MARK:
                    processes.remove_shared_memory(shared_memory(folder))
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
