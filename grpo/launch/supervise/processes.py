"""What a run owns on a machine (processes, shared memory, a folder), and how all of it ends, however the launcher ends.

The launcher is the child of a guard. It starts everything, and ends it; the guard waits, and forwards signals. The one
that survives a SIGKILL of the other ends what is left: a child whose parent dies gets a SIGTERM, and the parent of a
child inherits its processes.

A process is a run's if it descends from the calling process, or has the run's id in its environment. Guard and launcher
are child subreapers (prctl(2)), so what detaches itself stays in their tree. The id finds what a joined cluster starts.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from grpo.launch import signals
from grpo.stack.machine import SHM

RUN_ID_VARIABLE, _GUARD_VARIABLE = "GRPO_RUN_ID", "GRPO_GUARD"  # the latter has the guard's pid
# A socket path holds at most 107 bytes (unix(7)); Ray adds
# "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store", vLLM "/tmp/<uuid>", to our folder.
_ADDED = "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.lock"
_PREFIX, LOCK = "grpo-", "lock-of-a-grpo-run"
LONGEST_PARENT = 107 - len(_ADDED) - len(f"/{_PREFIX}12345678")  # characters of the path that holds the folder
_LIMIT = 30.0  # seconds after the grace: a process in an uninterruptible system call cannot be ended
_LOOK_SECONDS = 0.5  # between two looks at who uses /dev/shm, where other programs may make many files
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def guard(main: Callable[[], int]) -> int:
    """Run `main` under a parent that guards it; return its exit code, or 128 + n if signal n ended it."""
    if not is_lost():  # a launcher that replaces a guarded one (a restart)
        return main()
    os.environ |= {_GUARD_VARIABLE: str(os.getpid()), RUN_ID_VARIABLE: uuid.uuid4().hex}
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signals.hold_back()
    if child := os.fork():
        return _wait(child)
    os.setsid()  # a Ctrl-C reaches the parent alone, which forwards it
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signals.let_through()
    return 128 + signal.SIGKILL if is_lost() else main()  # the guard may have died before PDEATHSIG was set


def is_lost() -> bool:
    """Return whether this process has no guard, or its guard was killed."""
    return os.environ.get(_GUARD_VARIABLE) != str(os.getppid())


def _wait(child: int) -> int:
    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signals.handle(forward)
    signals.let_through()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signals.handle(signal.SIG_IGN)  # nothing may interrupt the clean-up
    left = end_all(os.environ[RUN_ID_VARIABLE], grace=0.0)  # mostly nothing is left
    if code >= 0:
        return code
    delete_dead_folders()
    if -code not in signals.ENDING:  # which end it silently while it starts
        what = f"the launcher was killed by {signal.Signals(-code).name}: its run has ended"
        print(f"{what}; ./train_grpo.sh --resume latest continues it", *filter(None, [left]), sep="\n", file=sys.stderr)
    return 128 - code


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(f"prctl({option}) failed")


def reap_orphans(kept: Iterable[int]) -> None:
    """Reap zombies that this subreaper got from their parents, but not `kept`, whose exit codes somebody waits for."""
    with contextlib.suppress(ChildProcessError):  # there is no child
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in kept:
            os.waitpid(ended.si_pid, 0)


def find_marked(run_id: str, variable: str = RUN_ID_VARIABLE) -> set[psutil.Process]:
    """Return the processes whose environment names this run. Other users' processes are unreadable and not ours."""
    needle, found = f"{variable}={run_id}".encode(), set()
    for pid in psutil.pids():  # Process.environ would stop at the empty entry of a process that rewrote its title
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(psutil.Process(pid))
    return found


def find_run_processes(run_id: str) -> set[psutil.Process]:
    """Return the living processes of a run, without the calling process. A zombie lives no more."""
    own, living = psutil.Process(), set()
    for process in (find_marked(run_id) | set(own.children(recursive=True))) - {own}:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.add(process)
    return living


def end_all(run_id: str, grace: float, folder: "RunFolder | None" = None) -> str:
    """End every process of a run, SIGKILL after `grace` seconds; note in `folder` the shared memory that they use.

    Scans on every turn, since a dying process may start others. Returns what a user can do about processes that still
    run; "" if none does.
    """
    started, told = time.monotonic(), set[psutil.Process]()
    while (alive := find_run_processes(run_id)) and (waited := time.monotonic() - started) < grace + _LIMIT:
        if folder:
            folder.note_shared_memory(run_id)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):  # which psutil also raises if the pid is in use again
                if waited >= grace:
                    process.kill()
                elif process not in told:
                    process.terminate()
        told |= alive
        time.sleep(0.05)
    left = ",".join(str(process.pid) for process in alive)
    return left and f"these processes could not be ended; inspect them with: ps -fp {left}"


def find_shared_memory(pids: Iterable[int]) -> set[Path]:
    """Return the files under /dev/shm that these processes have mapped.

    Compared by inode, which psutil does not give: glibc creates a semaphore under one name and links it to another.
    """
    inodes = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            # address, rights, offset, device, inode, path
            inodes |= {int(line.split()[4]) for line in lines if f" {SHM}/" in line}
    return {Path(entry.path) for entry in os.scandir(SHM) if entry.inode() in inodes} if inodes else set()


def remove_shared_memory(files: Iterable[Path]) -> None:
    """Delete those `files` that still exist and that no living process uses."""
    if existing := {file for file in files if file.exists()}:
        for file in existing - find_shared_memory(psutil.pids()):
            file.unlink()


class RunFolder:
    """The own folder of a run, or of an evaluation, for sockets and temporary files: short and private.

    If everything is killed at once, nothing deletes it. So this process holds a lock in it, and notes the run's shared
    memory in the lock. The next launch deletes what it finds in a lock that nobody holds.
    """

    def __init__(self) -> None:
        delete_dead_folders()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_find_parent()))
        self.lock = os.open(self.path / "new", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        (self.path / "new").rename(self.path / LOCK)  # only now: nobody sees it without its lock
        self._foreign = self._seen = set(SHM.glob("*"))  # files from before the run are never deleted
        self._next_look = 0.0

    def note_shared_memory(self, run_id: str) -> None:
        """Note whose new files under /dev/shm are while their owners live: nothing tells after a SIGKILL."""
        names = set(SHM.glob("*"))
        if names - self._seen and time.monotonic() > self._next_look:
            self._seen, self._next_look = names, time.monotonic() + _LOOK_SECONDS
            mine = find_shared_memory(process.pid for process in find_run_processes(run_id)) - self._foreign
            with contextlib.suppress(OSError):  # a full disk
                os.write(self.lock, "".join(f"{file.name}\n" for file in mine).encode())

    def delete(self) -> None:
        """Delete the folder, and the shared memory whose names its lock has."""
        _delete(self.path)
        os.close(self.lock)


def delete_dead_folders() -> None:
    """Delete the folders and the shared memory of runs whose launcher was killed."""
    for folder in _find_parent().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # not a run's folder, or the run lives
            if folder.lstat().st_uid == os.geteuid():
                descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(folder)


def _find_parent() -> Path:
    return Path(parent if len(parent := tempfile.gettempdir()) <= LONGEST_PARENT else "/tmp")


def _delete(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
        names = (folder / LOCK).read_text(encoding="utf-8").splitlines()
        remove_shared_memory(SHM / Path(name).name for name in names)
    shutil.rmtree(folder, ignore_errors=True)
