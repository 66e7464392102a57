"""What a soak proves of each run: its numbers are those of an undisturbed run, and its keys are nowhere."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from grpo.launch.supervise.processes import is_alive

# What differs between two runs of the same numbers: times, memory, disks, and what the faults themselves count.
OTHER = {
    *("time", "seconds", "tokens_per_second", "host_memory", "device_memory", "engine_memory", "disk_free"),
    *("lost_writes", "reward_seconds", "judge_seconds"),
    # A step that is made again finds the answers to its first attempt in the judge's cache.
    *("judge_calls", "judge_cached", "judge_tokens", "judge_failures"),
}
NAMES = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SOAK_SECRET")
CHUNK = 1 << 20


def find_differences(expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where the lines of two runs differ, digit for digit; [] if they are equal."""
    steps, wanted = [row["step"] for row in actual], [row["step"] for row in expected]
    if steps != wanted:
        return [f"steps {steps} instead of {wanted}"]
    return [
        f"step {row['step']}: {name} is {row.get(name)}, not {other.get(name)}"
        for row, other in zip(actual, expected, strict=True)
        for name in sorted(row.keys() | other.keys())
        if name.partition(".")[0] not in OTHER and row.get(name) != other.get(name)
    ]


def has_same_tensors(one: Path, other: Path) -> bool:
    """Return whether two files hold the same tensors, bit for bit; the order of their metadata is random."""
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def find_in_files(folders: Iterable[Path], secrets: Iterable[str]) -> list[str]:
    """Return the files that contain a secret."""
    needles = [secret.encode() for secret in secrets]
    files = (Path(root, name) for folder in folders for root, _, names in os.walk(folder) for name in names)
    return sorted(str(file) for file in files if _contains(file, needles))


def find_in_processes(secrets: Iterable[str], ours: Callable[[], set[int]]) -> list[str]:
    """Return the processes with a secret in their command line, and the foreign ones with one in their environment.

    Args:
        ours: returns the run's own processes. It is asked afterwards, so that it knows those that have just begun.
    """
    needles, found = [secret.encode() for secret in secrets], []
    for pid in psutil.pids():
        for name in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
            if any(needle in content for needle in needles):
                found.append((name, pid))
    # Asked twice: a process that ends during the first listing hides its children there.
    mine = ours() | ours() if found else set()
    return [f"{name} of {pid}" for name, pid in found if name == "cmdline" or _is_foreign(pid, mine)]


def _is_foreign(pid: int, ours: set[int]) -> bool:
    """Return whether a process lives and is not the run's. Until it is reaped, one that has ended still has its id."""
    try:
        return pid not in ours and is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _contains(file: Path, needles: Sequence[bytes]) -> bool:
    longest, before = max(map(len, needles)), b""
    try:
        if not file.is_file():  # a socket, a pipe
            return False
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                if any(needle in before + chunk for needle in needles):
                    return True
                before = chunk[-longest:]
    except OSError:  # it was deleted meanwhile
        return False
    return False
