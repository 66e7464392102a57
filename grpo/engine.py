"""The engine actor's side of a sync. Imports no DeepSpeed: vLLM's process stays free of it."""

from typing import Any


class SyncError(RuntimeError):
    """The engines do not hold the trainer's adapter; sampling from them would be sampling from another policy."""


async def load_into_engine(llm: Any, buffer: Any, specs: list[dict]) -> list[dict[str, int]]:
    """Pass the adapter on to the workers of one engine, and drop its prefix cache. Runs in the engine's Ray actor.

    Args:
        llm: vLLM's ``AsyncLLM``.
        buffer: numpy uint8 ``[bytes]``, from :func:`grpo.adapter.flatten`.
        specs: the fields of the ``TensorSpec`` of each tensor.

    Returns:
        A receipt of every worker: ``rank``, ``checksum`` (CRC-32 of the bytes), ``tensors`` (how many were applied).

    Raises:
        SyncError: where the prefix cache could not be dropped: its entries were computed with the old adapter.
    """
    receipts = await llm.collective_rpc("load_adapter", args=(buffer.tobytes(), specs))
    if not await llm.reset_prefix_cache():
        raise SyncError("the engine could not drop its prefix cache: requests are still running during a sync")
    return receipts
