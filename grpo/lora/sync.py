"""Sends the LoRA adapter from the trainer to the vLLM engines, through the Ray object store.

Trainer ranks gather the adapter with one collective, and rank 0 puts one flat buffer into the object store. Every
engine actor gets the reference as an argument, so Ray passes the buffer without a copy. Its tensor-parallel workers
are vLLM processes. They map the actor's copy and copy their slices into their layers (``grpo.lora.vllm_lora``).
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import ray
import torch
import torch.distributed as dist

from grpo.lora.adapter import Checksums, SyncResult, TensorSpec, gather
from grpo.model.shared_base import MemoryFile
from grpo.stack.upstream import AsyncLLM, EngineActor

TIMEOUT_SECONDS = 600.0


class SyncError(RuntimeError):
    """The engines do not hold the trainer's adapter; sampling from them would use another policy."""


def sync_adapter(model: torch.nn.Module, engines: Sequence[EngineActor]) -> int | None:
    """Send the trainer's adapter to every engine. A collective call: every trainer rank makes it.

    Returns:
        the most memory that any engine's worker held since the sync before, in bytes; None on all ranks but the first.

    Raises:
        FloatingPointError: if the adapter is not finite.
        SyncError: if a worker reports bytes that were not sent, or only part of the adapter.
        ray.exceptions.RayError: if an engine died or does not answer within ``TIMEOUT_SECONDS``.
    """
    flat, specs = gather(model)
    memory = send(flat, specs, engines) if dist.get_rank() == 0 else None
    dist.barrier()
    return memory


def send(flat: torch.Tensor, specs: list[TensorSpec], engines: Sequence[EngineActor]) -> int:
    """Send a flat adapter (on the CPU) to every engine and verify what arrived. Returns and raises as above."""
    # numpy has no bf16: as bytes, Ray shares it without pickling
    reference = ray.put(flat.view(torch.uint8).numpy())
    fields = [asdict(spec) for spec in specs]
    calls = [engine.load_adapter.remote(reference, fields) for engine in engines]
    expected = Checksums.of(flat, specs)  # while the engines are working
    results = ray.get(calls, timeout=TIMEOUT_SECONDS)
    check_sync(results, expected)
    return max(result["memory"] for workers in results for result in workers)


@functools.lru_cache(maxsize=1)  # reused for every sync, so its pages are allocated once
def _map_memory(engine: int, size: int) -> tuple[MemoryFile, np.ndarray]:
    """Return a file for an adapter, and its bytes, uint8 ``[size]``."""
    del engine  # two engines in one process must not overwrite each other's adapter
    memory = MemoryFile(size, "grpo-adapter")
    return memory, memory.map_for_writing().numpy()


async def load_into_engine(llm: AsyncLLM, buffer: np.ndarray, specs: list[dict]) -> list[SyncResult]:
    """Pass the adapter on to one engine's workers and reset its prefix cache. Runs in the engine's Ray actor.

    The workers map a copy in shared memory. As an argument of ``collective_rpc`` the bytes would be pickled and sent
    through sockets for each worker.

    Args:
        buffer: numpy uint8 ``[bytes]``, the flat adapter of :func:`grpo.lora.adapter.gather`.
        specs: the fields of the ``TensorSpec`` of each tensor.

    Returns:
        Every worker's report.

    Raises:
        SyncError: if the prefix cache could not be reset. Its entries were computed with the old adapter.
    """
    memory, content = _map_memory(id(llm), buffer.nbytes)
    content[:] = buffer
    # Nothing is generated during a sync, so the order of these two does not matter.
    results: list[SyncResult]
    dropped: bool
    results, dropped = await asyncio.gather(
        llm.collective_rpc("load_adapter", args=(memory.path, specs)), llm.reset_prefix_cache()
    )
    if not dropped:
        raise SyncError("the engine could not drop its prefix cache: requests are still running during a sync")
    return results


def check_sync(results: list[list[SyncResult]], expected: Checksums) -> None:
    """Compare what each engine's workers report, see :func:`load_into_engine`, with what was sent.

    Raises:
        SyncError: if an engine's workers applied other values or only part of the adapter, or did not report.
    """
    for number, workers in enumerate(results):
        ranks = sorted(result["rank"] for result in workers)
        if not workers or ranks != list(range(workers[0]["workers"])):
            raise SyncError(f"not every worker of engine {number} has confirmed the adapter: start again")
        checksum, applied = sum(result["checksum"] for result in workers) % 2**64, {one["tensors"] for one in workers}
        if checksum != expected.checksum(len(workers)) or applied != {expected.tensors}:
            raise SyncError(
                f"engine {number} applied {sorted(applied)} tensors with checksum {checksum:#x}, but the trainer sent "
                f"{expected.tensors} with {expected.checksum(len(workers)):#x}. The engine would sample from another "
                "policy: start again"
            )
