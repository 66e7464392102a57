"""Which processes and shared-memory files belong to a run, and how to end them all (Linux).

A process belongs to a run if it descends from the run's keeper, or has the run's id in its environment.
The keeper is a child subreaper (prctl(2)): a process that detaches itself (setsid, double fork) stays in its tree, even
with an empty environment. The id finds processes that a joined Ray cluster starts for us.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

from grpo.stack.machine import SHM

RUN_ID_VARIABLE = "GRPO_RUN_ID"
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
SHM_SCAN_SECONDS = 0.5


class Ended(NamedTuple):
    """How the processes of a run ended.

    Attributes:
        left: the pids of those that still run.
        shared_memory: the files under /dev/shm that they used while they were being ended; some may be others' files.
    """

    left: set[int]
    shared_memory: set[Path]


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children instead of init's.

    Raises:
        OSError: if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def find_marked(run_id: str) -> set[psutil.Process]:
    """Return the processes whose environment names this run. Other users' processes are unreadable and not ours.

    Not ``psutil.Process.environ``: it stops at the first empty entry, which a process leaves that rewrites its title.
    """
    needle = f"{RUN_ID_VARIABLE}={run_id}".encode()
    processes = set()
    for pid in psutil.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                processes.add(psutil.Process(pid))
    return processes


def is_alive(process: psutil.Process) -> bool:
    """Tell whether this very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def find_run_processes(run_id: str, root: int) -> list[psutil.Process]:
    """Return the living processes of a run, without `root` and without the calling process."""
    processes = find_marked(run_id)
    with contextlib.suppress(psutil.NoSuchProcess):
        processes |= set(psutil.Process(root).children(recursive=True))
    others = [process for process in processes if process.pid not in (root, os.getpid())]
    return sorted(filter(is_alive, others), key=lambda process: process.pid)


def send(process: psutil.Process, signum: int) -> bool:
    """Send a signal to this very process; False if it has ended, even if its pid is in use again.

    Not ``psutil.Process.send_signal``: the pid may be reused between its check and its kill(2). A pidfd cannot.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.is_running():
            return False
        signal.pidfd_send_signal(handle, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def reap() -> dict[int, int]:
    """Collect ended children of this process; return exit codes by pid, -n if signal n ended the child."""
    exits: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exits
        if pid == 0:
            return exits
        exits[pid] = os.waitstatus_to_exitcode(status)


def end_all(run_id: str, root: int, grace: float, limit: float = 30.0) -> Ended:
    """End every process of a run: SIGTERM, then SIGKILL after `grace` seconds, repeated until no process is left.

    Scans again on every turn, since a dying process may still start others, and an engine that starts may still create
    shared memory. Gives up `limit` seconds after `grace`: a process in an uninterruptible system call cannot be ended.
    """
    started = time.monotonic()
    signalled: set[int] = set()
    memory: set[Path] = set()
    looked_at: set[str] = set()
    while True:
        reap()
        names = set(os.listdir(SHM))
        alive = find_run_processes(run_id, root)
        if names - looked_at:
            memory |= find_shared_memory(process.pid for process in alive)
            looked_at = names
        waited = time.monotonic() - started
        if not alive or waited > grace + limit:
            return Ended({process.pid for process in alive}, memory)
        for process in alive:
            if waited >= grace:
                send(process, signal.SIGKILL)
            elif process.pid not in signalled:
                send(process, signal.SIGTERM)
                signalled.add(process.pid)
        time.sleep(_POLL_SECONDS)


def find_shared_memory(pids: Iterable[int]) -> set[Path]:
    """Return the files under /dev/shm that these processes have mapped or open.

    Compared by inode, which psutil does not give: glibc creates a semaphore under one name and links it to another.
    """
    inodes: set[int] = set()
    for pid in pids:
        # In this order: a file may be mapped and then closed while we look.
        inodes |= _open_inodes(pid) | _mapped_inodes(pid)
    return {Path(entry.path) for entry in os.scandir(SHM) if entry.inode() in inodes}


def _mapped_inodes(pid: int) -> set[int]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    # address, rights, offset, device, inode, path
    return {int(line.split()[4]) for line in lines if f" {SHM}/" in line}


def _open_inodes(pid: int) -> set[int]:
    inodes = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            # A file may be closed while we look.
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link).startswith(f"{SHM}/"):
                    inodes.add(os.stat(link).st_ino)
    return inodes


def remove_shared_memory(files: Iterable[Path]) -> list[Path]:
    """Delete those `files` that still exist and that no living process uses; return the deleted ones."""
    in_use = find_shared_memory(psutil.pids())
    removed = []
    for file in sorted(set(files) - in_use):
        if file.exists():
            file.unlink()
            removed.append(file)
    return removed


class SharedMemoryWatch:
    """Looks up whose new files under /dev/shm are while their owners live.

    A killed process leaves its segments behind, and nothing then tells whose they are. Segments from its last half
    second can remain: an unused file without a known owner is not deleted.

    Attributes:
        files: those that the run's processes have used so far.
    """

    def __init__(self, run_id: str) -> None:
        self.files: set[Path] = set()
        self._run_id, self._names, self._next = run_id, set[str](), 0.0

    def look(self) -> bool:
        """Look for new files, at most twice a second; return whether there were any."""
        if time.monotonic() < self._next:
            return False
        before, self._names = self._names, set(os.listdir(SHM))
        if not self._names - before:
            return False
        self.files |= find_shared_memory(process.pid for process in find_run_processes(self._run_id, os.getpid()))
        self._next = time.monotonic() + SHM_SCAN_SECONDS
        return True
