"""The engine actor's side of a sync. Imports no DeepSpeed: vLLM's process stays free of it."""

import asyncio
import contextlib
import functools
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from grpo.lora.adapter import Receipt


class SyncError(RuntimeError):
    """The engines do not hold the trainer's adapter; sampling from them would be sampling from another policy."""


class SharedMemory:
    """Memory that other processes of this user can map, until this one ends: a file without a name.

    Unlike a file in /dev/shm, nothing is left of it however the process ends, and Docker's limit on /dev/shm does not
    count. Kept from sync to sync, so that its pages are made once.

    Attributes:
        path: names it for other processes on this machine.
        bytes: numpy uint8 ``[size]``.
    """

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("grpo-adapter")
        os.ftruncate(self._descriptor, size)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self.bytes = np.frombuffer(mmap.mmap(self._descriptor, size), dtype=np.uint8)

    def __del__(self) -> None:
        os.close(self._descriptor)


@functools.lru_cache(maxsize=1)
def _shared_memory(engine: int, size: int) -> SharedMemory:
    del engine  # two engines in one process must not write over each other's adapter
    return SharedMemory(size)


def shared_place(buffer: np.ndarray) -> tuple[str, int] | None:
    """Return the file that holds ``buffer`` and where in it, if other processes can open that file; else None.

    Ray's object store is a file without a name. A Ray worker maps it and closes it; the raylet, which is the worker's
    parent, keeps it open, and /proc shows an open file to every process of the same user.

    Args:
        buffer: numpy uint8 ``[bytes]``, contiguous.
    """
    start = buffer.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():  # proc(5): range, mode, offset, device, inode, path
        addresses, _, offset, device, inode, *_ = line.split()
        first, end = (int(address, 16) for address in addresses.split("-"))
        if first <= start and start + buffer.nbytes <= end and inode != "0":
            major, minor = (int(number, 16) for number in device.split(":"))
            path = _opened_by(os.getppid(), os.makedev(major, minor), int(inode))
            return (path, int(offset, 16) + start - first) if path else None
    return None


def _opened_by(pid: int, device: int, inode: int) -> str | None:
    """Return how a file that a process has open can be opened by others."""
    with contextlib.suppress(OSError):  # another user's process: its files are its own
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                file = entry.stat()
                if (file.st_dev, file.st_ino) == (device, inode):
                    return str(entry)
    return None


async def load_into_engine(llm: Any, buffer: Any, specs: list[dict]) -> list[dict[str, int]]:
    """Pass the adapter on to the workers of one engine, and drop its prefix cache. Runs in the engine's Ray actor.

    The workers map the object store, or a copy where they cannot: as an argument of ``collective_rpc`` the bytes would
    be pickled and go through sockets for each worker.

    Args:
        llm: vLLM's ``AsyncLLM``.
        buffer: numpy uint8 ``[bytes]``, the flat adapter of :func:`grpo.lora.adapter.gather`.
        specs: the fields of the ``TensorSpec`` of each tensor.

    Returns:
        What every worker reports: its ``rank`` of how many ``workers``, ``tensors`` (how many were applied), and the
        ``checksum`` of what its side paths hold now (see :class:`grpo.lora.adapter.Receipt`).

    Raises:
        SyncError: where the prefix cache could not be dropped: its entries were computed with the old adapter.
    """
    place = shared_place(buffer)
    if place is None:
        memory = _shared_memory(id(llm), buffer.nbytes)
        memory.bytes[:] = buffer
        place = memory.path, 0
    path, offset = place
    # Nothing is generated during a sync, so the order of the two does not matter.
    receipts, dropped = await asyncio.gather(
        llm.collective_rpc("load_adapter", args=(path, specs, offset)), llm.reset_prefix_cache()
    )
    if not dropped:
        raise SyncError("the engine could not drop its prefix cache: requests are still running during a sync")
    return receipts


def check_receipts(receipts: list[list[dict[str, int]]], expected: Receipt) -> None:
    """Compare what the workers of each engine report with what was sent.

    Args:
        receipts: for each engine those of :func:`load_into_engine`.

    Raises:
        SyncError: where an engine's workers applied other values, or not the whole adapter, or do not report.
    """
    for number, workers in enumerate(receipts):
        ranks = sorted(receipt["rank"] for receipt in workers)
        if not workers or ranks != list(range(workers[0]["workers"])):
            raise SyncError(f"engine {number} has no receipt of each of its workers: start again")
        checksum, applied = sum(receipt["checksum"] for receipt in workers) % 2**64, {r["tensors"] for r in workers}
        if checksum != expected.checksum(len(workers)) or applied != {expected.tensors}:
            raise SyncError(
                f"engine {number} applied {sorted(applied)} tensors with checksum {checksum:#x}; sent were "
                f"{expected.tensors} with {expected.checksum(len(workers)):#x}. It would sample from another policy: "
                "start again"
            )
