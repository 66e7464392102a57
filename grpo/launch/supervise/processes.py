"""Which processes and shared-memory files belong to a run, and how to end them all (Linux, /proc).

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
from dataclasses import dataclass
from pathlib import Path

from grpo.stack.machine import SHM

RUN_ID_VARIABLE = "GRPO_RUN_ID"


_PR_SET_PDEATHSIG = 1


_PR_SET_CHILD_SUBREAPER = 36


_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """One row of /proc. `started` is in clock ticks since boot; with the pid it identifies a process for good."""

    pid: int
    parent: int
    state: str
    started: int


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended: all pids, those that needed SIGKILL, those that still live."""

    found: frozenset[int]
    killed: frozenset[int]
    left: frozenset[int]


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children instead of init's.

    Raises:
        OSError: if the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGTERM) -> None:
    """Ask the kernel to send `signum` to this process when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def read_process(pid: int) -> Process | None:
    """Return the process with this pid; None if it does not exist (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name (second field) may hold spaces and parentheses: count from the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(pid=pid, parent=int(fields[1]), state=fields[0], started=int(fields[19]))


def table() -> dict[int, Process]:
    """Return every process of this machine by pid."""
    rows = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def descendants(root: int, processes: dict[int, Process]) -> set[int]:
    """Return the pids below `root`, without `root`."""
    children: dict[int, list[int]] = {}
    for row in processes.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: set[int] = set()
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), []):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def marked(run_id: str, pids: Iterable[int]) -> set[int]:
    """Return the pids whose environment names this run. Other users' processes are unreadable and not ours."""
    needle = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = set()
    for pid in pids:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if needle in variables:
            found.add(pid)
    return found


def of_run(run_id: str, root: int) -> list[Process]:
    """Return the living processes of a run, without `root` and without the calling process."""
    processes = table()
    pids = (descendants(root, processes) | marked(run_id, processes)) - {root, os.getpid()}
    return [processes[pid] for pid in sorted(pids) if processes[pid].state not in "ZX"]


def send(process: Process, signum: int) -> bool:
    """Send a signal to this very process; False if it has ended, even if its pid is in use again."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.started != process.started:
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

    Scans again on every turn, since a dying process may still start others. Gives up `limit` seconds after
    `grace`: a process in an uninterruptible system call cannot be ended.
    """
    started = time.monotonic()
    found: set[int] = set()
    killed: set[int] = set()
    while True:
        reap()
        alive = of_run(run_id, root)
        waited = time.monotonic() - started
        if not alive or waited > grace + limit:
            return Ended(frozenset(found), frozenset(killed), frozenset(row.pid for row in alive))
        for row in alive:
            if waited >= grace:
                if send(row, signal.SIGKILL):
                    killed.add(row.pid)
            elif row.pid not in found:
                send(row, signal.SIGTERM)
            found.add(row.pid)
        time.sleep(_POLL_SECONDS)


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """Return the files under /dev/shm that these processes have mapped or open.

    Compared by inode: glibc creates a semaphore under one name and then links it to another.
    """
    inodes: set[int] = set()
    for pid in pids:
        inodes |= _mapped_inodes(pid) | _open_inodes(pid)
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
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            # A file may be closed while we look.
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link).startswith(f"{SHM}/"):
                    inodes.add(os.stat(link).st_ino)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return inodes
    return inodes


def remove_shared_memory(files: Iterable[Path]) -> list[Path]:
    """Delete those `files` that still exist and that no living process uses; return the deleted ones."""
    in_use = shared_memory_of(table())
    removed = []
    for file in sorted(set(files) - in_use):
        if file.exists():
            file.unlink()
            removed.append(file)
    return removed


class SharedMemoryWatch:
    """Tells when a file is created under /dev/shm (inotify(7)), so that its owner can be looked up at once.

    A killed process leaves its segments behind, and nothing then tells whose they are. Segments from its last half
    second can remain: an unused file without a known owner is not deleted.
    """

    _IN_CREATE = 0x100

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0 or libc.inotify_add_watch(self.fd, bytes(SHM), self._IN_CREATE) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {SHM}")

    def drain(self) -> None:
        """Forget the events so far."""
        try:
            while os.read(self.fd, 65536):
                continue
        except BlockingIOError:
            return
