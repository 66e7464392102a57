"""Which processes and shared-memory files belong to a run, and how to end them all (Linux).

A process is a run's if it descends from the calling process, or has the run's id in its environment. The callers are
child subreapers (prctl(2)), so what detaches itself stays in their tree. The id finds what a joined cluster starts.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from grpo.stack.machine import SHM

RUN_ID_VARIABLE = "GRPO_RUN_ID"
_LIMIT = 30.0  # seconds after the grace: a process in an uninterruptible system call cannot be ended


def find_marked(run_id: str) -> set[psutil.Process]:
    """Return the processes whose environment names this run. Other users' processes are unreadable and not ours."""
    needle, found = f"{RUN_ID_VARIABLE}={run_id}".encode(), set()
    for pid in psutil.pids():  # Process.environ would stop at the empty entry of a process that rewrote its title
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(psutil.Process(pid))
    return found


def find_run_processes(run_id: str) -> set[psutil.Process]:
    """Return the living processes of a run, without the calling process."""
    own = psutil.Process()
    return set(filter(_is_alive, (find_marked(run_id) | set(own.children(recursive=True))) - {own}))


def _is_alive(process: psutil.Process) -> bool:
    """Tell whether this very process still runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_all(run_id: str, grace: float, foreign: set[Path]) -> str:
    """End every process of a run, SIGKILL after `grace` seconds, and delete the shared memory that they used meanwhile.

    Scans on every turn, since a dying process may start others. `foreign` files stay. Returns what a user can do about
    processes that still run; "" if none does.
    """
    started, told = time.monotonic(), set[psutil.Process]()
    memory, seen = set[Path](), set[Path]()
    while (alive := find_run_processes(run_id)) and (waited := time.monotonic() - started) < grace + _LIMIT:
        if (names := set(SHM.glob("*"))) - seen:
            memory |= find_shared_memory(process.pid for process in alive)
            seen = names
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):  # which psutil also raises if the pid is in use again
                if waited >= grace:
                    process.kill()
                elif process not in told:
                    process.terminate()
        told |= alive
        time.sleep(0.05)
    remove_shared_memory(memory - foreign)
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


def remove_shared_memory(files: Iterable[Path]) -> list[Path]:
    """Delete those `files` that still exist and that no living process uses; return the deleted ones."""
    existing = {file for file in files if file.exists()}
    removed = sorted(existing - find_shared_memory(psutil.pids())) if existing else []
    for file in removed:
        file.unlink()
    return removed
