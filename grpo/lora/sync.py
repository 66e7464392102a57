"""Sends the LoRA adapter from the trainer to the vLLM engines, through the Ray object store.

Trainer ranks gather the adapter with one collective, and rank 0 puts one flat buffer into the object store. Every
engine actor gets the reference as an argument, so Ray hands it the buffer without a copy. Its tensor-parallel workers
are vLLM processes. They map the actor's copy and copy their slices into their layers (``grpo.lora.vllm_lora``).
"""

from collections.abc import Sequence
from dataclasses import asdict

import ray
import torch
import torch.distributed as dist

from grpo.lora.adapter import Checksums, TensorSpec, gather
from grpo.lora.engine_actor import check_sync
from grpo.stack.upstream.engine import EngineActor

TIMEOUT_SECONDS = 600.0


def sync_adapter(model: torch.nn.Module, engines: Sequence[EngineActor]) -> int | None:
    """Bring every engine to the trainer's adapter. A collective call: every trainer rank makes it.

    Args:
        model: the PeftModel of this rank.
        engines: the ``LLMRayActor`` handles.

    Returns:
        the most memory that any engine's worker held since the sync before, in bytes; None on all ranks but the first.

    Raises:
        FloatingPointError: if the adapter is not finite.
        SyncError: if a worker reports other bytes than were sent, or only part of the adapter.
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
