"""Notes which process of a run ended first, and how.

Ray's daemon, not the keeper, is the parent of engines and actor ranks, and it throws their exit codes away. A pidfd
tells when such a process has ended, and from Linux 6.15 on how (pidfd_open(2), PIDFD_GET_INFO).
"""

import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

SCAN_SECONDS = 2.0
ENDING_SECONDS = 5.0  # a process that has begun to end may need, to free a GPU
_ENGINE, _CORE, _WORKER = "an engine", "the core of an engine", "a worker of an engine"
# Start of a process's title: what the user calls it. Ray and vLLM set these titles.
ROLES = {
    "ray::LLMRayActor": _ENGINE,
    "ray::PolicyWorker": "an actor rank",
    "ray::JudgeActor": "the judge",
    "VLLM::EngineCore": _CORE,
    "VLLM::Worker": _WORKER,
}

_SPAWNED = "--multiprocessing-fork"  # in the command line of a process that Python's multiprocessing has spawned
DAEMONS = {"raylet": "Ray's raylet", "gcs_server": "Ray's GCS server"}

_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of linux/pidfd.h: mask, cgroup, ids, exit status
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_WITH_EXIT = 1 << 3


@dataclass(frozen=True)
class Death:
    """The end of a process: its code, -n if signal n ended it, None if this kernel does not tell."""

    role: str
    pid: int
    code: int | None

    def __str__(self) -> str:
        return f"{self.role} {describe_end(self.code)} (pid {self.pid})"


def describe_end(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None:
        return "died"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def find_role(process: psutil.Process) -> str | None:
    """Return what a process is in a run; None if its end would not end the run, or has begun.

    A process that ends loses its title before its sockets, so before others learn of its end.
    """
    words = _words(process)
    named = next((role for start, role in ROLES.items() if words[0].startswith(start)), None)
    return (
        named
        or DAEMONS.get(os.path.basename(words[0]))
        or (_find_untitled_role(process) if _SPAWNED in words else None)
    )


def _find_untitled_role(process: psutil.Process) -> str | None:
    """Return the role of a process of vLLM without a title, by its place below the engine's actor.

    setproctitle sets none if the first variable of the environment has been changed since the process began. Ray starts
    its actors with their variables in random order.
    """
    try:
        parents = process.parents()  # [] if the parent ends meanwhile
        if parents and find_role(parents[0]) == _ENGINE:
            has_core = any(_words(child)[0].startswith("VLLM::") for child in parents[0].children())
            return None if has_core else _CORE
        return _WORKER if len(parents) > 1 and find_role(parents[1]) == _ENGINE else None
    except psutil.Error:
        return None


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a process; [""] if it has ended."""
    try:
        return process.cmdline() or [""]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return [""]


def find_living() -> list[int]:
    """Return the processes of this machine's runs that have a role."""
    return [process.pid for process in psutil.process_iter() if find_role(process)]


class Witness:
    """Watches the processes that a run cannot lose."""

    def __init__(self) -> None:
        self._watched: dict[int, tuple[str, int]] = {}  # role and pid by pidfd
        self._deaths = select.epoll()  # hands them over in the order in which they happened
        self._next_scan = 0.0

    def is_due(self) -> bool:
        """Tell whether the last :meth:`watch_new` is long enough ago."""
        return time.monotonic() >= self._next_scan

    def watch_new(self, processes: Iterable[psutil.Process]) -> None:
        """Watch those of the run's processes that have got a role since the last call."""
        self._next_scan = time.monotonic() + SCAN_SECONDS
        known = {pid for _, pid in self._watched.values()}
        for process in processes:
            role = None if process.pid in known else find_role(process)
            if role:
                try:
                    handle = os.pidfd_open(process.pid)
                except ProcessLookupError:
                    continue
                self._watched[handle] = (role, process.pid)
                self._deaths.register(handle, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when a process dies."""
        return self._deaths.fileno()

    def deaths(self) -> list[Death]:
        """Return the deaths since the last call in their order, but those by a signal first."""
        died = []
        for handle, _ in self._deaths.poll(0):
            role, pid = self._watched.pop(handle)
            self._deaths.unregister(handle)
            died.append(Death(role, pid, _exit_code(handle, pid)))
            os.close(handle)
        return sorted(died, key=lambda death: death.code is None or death.code >= 0)

    def last_deaths(self) -> list[Death]:
        """Wait for those that have begun to end, and return the deaths since the last call."""
        until = time.monotonic() + ENDING_SECONDS
        died = self.deaths()
        while set(self.list_watched()) - set(find_living()) and time.monotonic() < until:
            time.sleep(0.05)
            died += self.deaths()
        return died

    def list_watched(self) -> dict[int, str]:
        """Return the roles of the living, by pid."""
        return {pid: role for role, pid in self._watched.values()}


def _exit_code(handle: int, pid: int) -> int | None:
    """Return how the process of a pidfd ended; None if the kernel does not tell."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _read_reaped(handle)
    # Its parent has not asked for the code, or asks just now (proc_pid_stat(5)); else it is another process.
    return os.waitstatus_to_exitcode(int(fields[-1])) if state in "ZX" else _read_reaped(handle)


def _read_reaped(handle: int) -> int | None:
    info = bytearray(_INFO.pack(_WITH_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(handle, _GET_INFO, info)
    except OSError:  # before Linux 6.13
        return None
    mask, *_, status = _INFO.unpack(info)
    return os.waitstatus_to_exitcode(status) if mask & _WITH_EXIT else None
