"""The engine actor's side of a sync. Imports no DeepSpeed: vLLM's process stays free of it."""

import os
import tempfile
from copy import copy
from typing import Any

SHARED_MEMORY = "/dev/shm"  # a file system in memory, on every Linux; Ray's object store lies there too


class SyncError(RuntimeError):
    """The engines do not hold the trainer's adapter; sampling from them would be sampling from another policy."""


def for_sample(params: Any, number: int) -> Any:
    """Return the sampling parameters of one of the samples of a prompt: each has a seed of its own.

    Args:
        params: vLLM's ``SamplingParams`` of the prompt; stays as it is.
        number: 0 for the first sample.
    """
    mine = copy(params)
    if mine.seed is not None:
        mine.seed += number
    return mine


def seeding_arguments() -> dict[str, Any]:
    """Return engine arguments that seeded requests need: on a CPU, prompts are computed whole.

    vLLM 0.15.0 takes back the draw of a request whose prompt is computed in parts by moving its generator's offset,
    which generators on a CPU do not have: the engine would die.
    """
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}


async def load_into_engine(llm: Any, buffer: Any, specs: list[dict]) -> list[dict[str, int]]:
    """Pass the adapter on to the workers of one engine, and drop its prefix cache. Runs in the engine's Ray actor.

    By a file in memory, which all workers map: as an argument of ``collective_rpc`` the bytes would be pickled and
    copied through sockets for each of them.

    Args:
        llm: vLLM's ``AsyncLLM``.
        buffer: numpy uint8 ``[bytes]``, the flat adapter of :func:`grpo.adapter.gather`.
        specs: the fields of the ``TensorSpec`` of each tensor.

    Returns:
        A receipt of every worker: ``rank``, ``tensors`` (how many were applied), ``checksum`` of what it mapped
        (:func:`grpo.adapter.checksum`).

    Raises:
        SyncError: where the prefix cache could not be dropped: its entries were computed with the old adapter.
    """
    handle, path = tempfile.mkstemp(prefix="grpo-adapter-", dir=SHARED_MEMORY)
    try:
        with open(handle, "wb") as file:
            file.write(buffer)
        receipts = await llm.collective_rpc("load_adapter", args=(path, specs))
    finally:
        os.unlink(path)
    if not await llm.reset_prefix_cache():
        raise SyncError("the engine could not drop its prefix cache: requests are still running during a sync")
    return receipts
