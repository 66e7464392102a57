"""Why a run failed, in one line with a remedy, as the launcher sees it: a full disk, a signal, or the last words."""

import signal
from collections.abc import Mapping
from pathlib import Path

from grpo.launch.supervise import last_words
from grpo.stack import machine
from grpo.stack.problem import Problem

FULL_BYTES = 16 * 2**20  # nothing of a run is written to a disk with less
OOM_COUNTER = Path("/proc/vmstat")


def find(
    log_dir: Path, folders: Mapping[str, Path], code: int, out_of_memory: int = 0, silent_head: str = ""
) -> Problem | None:
    """Return the first cause of a driver's failure; None if only the log can tell.

    Args:
        log_dir: has the exception that ended the driver.
        folders: where the run writes, by what the user calls them.
        code: the driver's exit code, -n after signal n.
        out_of_memory: processes that the kernel ended for memory on this machine during the run.
        silent_head: the address of a joined cluster that does not answer any more; "" if it does.
    """
    if full := find_full_disk(folders):
        return full
    remedy = ""
    if out_of_memory:
        remedy = f"the kernel ended {out_of_memory} processes of this machine for lack of memory during the run: "
        remedy += last_words.FREE_MEMORY
    words = last_words.read(log_dir)
    if code < 0 and not (code == -signal.SIGABRT and (words or silent_head)):  # Ray aborts a driver without a cluster
        return Problem(f"the driver {describe_end(code)}", remedy)
    if silent_head:
        return Problem(f"the head of the Ray cluster at {silent_head} was lost", last_words.LOST_REMEDY)
    return Problem(words.what, words.remedy or remedy) if words else None


def find_full_disk(folders: Mapping[str, Path]) -> Problem | None:
    """Return which of the folders have no room left; None if all have some."""
    full = [
        f"the disk of {name} is full: {folder}"
        for name, folder in folders.items()
        if folder.is_dir() and machine.disk_free(folder) < FULL_BYTES
    ]
    return Problem("; ".join(full), last_words.FREE_DISK) if full else None


def describe_end(code: int) -> str:
    """Return how a process ended, in words."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def count_out_of_memory_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory since the machine started."""
    try:
        fields = dict(line.split() for line in OOM_COUNTER.read_text().splitlines())
    except OSError:
        return 0
    return int(fields.get("oom_kill", 0))
