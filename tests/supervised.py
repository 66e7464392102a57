"""Observation of processes that tests start and that must end."""

import time
from collections.abc import Callable

import psutil


def wait_until(condition: Callable[[], bool], failure: str, seconds: float = 400) -> None:
    """Wait for a condition; fail with a message."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_command_line(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def find_processes(text: str) -> list[int]:
    """Return the processes whose command line contains a text."""
    return [pid for pid in psutil.pids() if text in read_command_line(pid)]


def list_children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [child.pid for child in psutil.Process(pid).children()]
