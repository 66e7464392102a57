"""Which processes and shared-memory files belong to a run, and how to end them all (Linux).

A process belongs to a run if it descends from the calling process, or has the run's id in its environment. The callers
are child subreapers (prctl(2)): a process that detaches itself (setsid, double fork) stays in their tree, even with an
empty environment. The id finds processes that a joined Ray cluster starts for us.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from grpo.stack.machine import SHM

RUN_ID_VARIABLE = "GRPO_RUN_ID"
_POLL_SECONDS = 0.05
_LIMIT = 30.0  # after the grace: a process in an uninterruptible system call cannot be ended


def describe_left(left: Iterable[int]) -> str:
    """Return what a user can do about processes that still run."""
    return f"these processes could not be ended; inspect them with: ps -fp {','.join(map(str, sorted(left)))}"


def find_marked(run_id: str) -> set[psutil.Process]:
    """Return the processes whose environment names this run. Other users' processes are unreadable and not ours.

    Not ``psutil.Process.environ``: it stops at the first empty entry, which a process leaves that rewrites its title.
    """
    needle = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(psutil.Process(pid))
    return found


def find_run_processes(run_id: str) -> list[psutil.Process]:
    """Return the living processes of a run, without the calling process."""
    found = (find_marked(run_id) | set(psutil.Process().children(recursive=True))) - {psutil.Process()}
    return sorted(filter(_is_alive, found), key=lambda process: process.pid)


def _is_alive(process: psutil.Process) -> bool:
    """Tell whether this very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def reap() -> dict[int, int]:
    """Collect ended children of this process; return exit codes by pid, -n if signal n ended the child."""
    exits: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            exits[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return exits


def end_all(run_id: str, grace: float) -> tuple[set[int], set[Path]]:
    """End every process of a run: SIGTERM, then SIGKILL after `grace` seconds, repeated until no process is left.

    Scans again on every turn, since a dying process may still start others, and an engine that starts may still create
    shared memory.

    Returns:
        The pids of those that still run, and the files under /dev/shm that the processes used meanwhile; some may be
        others' files.
    """
    started = time.monotonic()
    signalled: set[int] = set()
    memory: set[Path] = set()
    looked_at: set[Path] = set()
    while True:
        reap()
        names = set(SHM.glob("*"))
        alive = find_run_processes(run_id)
        if names - looked_at:
            memory |= find_shared_memory(process.pid for process in alive)
            looked_at = names
        waited = time.monotonic() - started
        if not alive or waited > grace + _LIMIT:
            return {process.pid for process in alive}, memory
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):  # which psutil also raises if the pid is in use again
                if waited >= grace:
                    process.kill()
                elif process.pid not in signalled:
                    process.terminate()
                    signalled.add(process.pid)
        time.sleep(_POLL_SECONDS)


def find_shared_memory(pids: Iterable[int]) -> set[Path]:
    """Return the files under /dev/shm that these processes have mapped.

    Compared by inode, which psutil does not give: glibc creates a semaphore under one name and links it to another.
    """
    inodes = set().union(*map(_mapped_inodes, pids))
    return {Path(entry.path) for entry in os.scandir(SHM) if entry.inode() in inodes} if inodes else set()


def _mapped_inodes(pid: int) -> set[int]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    # address, rights, offset, device, inode, path
    return {int(line.split()[4]) for line in lines if f" {SHM}/" in line}


def remove_shared_memory(files: Iterable[Path]) -> list[Path]:
    """Delete those `files` that still exist and that no living process uses; return the deleted ones."""
    in_use = find_shared_memory(psutil.pids())
    removed = [file for file in sorted(set(files) - in_use) if file.exists()]
    for file in removed:
        file.unlink()
    return removed
