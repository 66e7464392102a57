"""Hooks of openrlhf/trainer/ray/vllm_engine.py, in the engine's Ray actor. Imports no DeepSpeed."""

from typing import TYPE_CHECKING, Any

from grpo.lora import engine_actor
from grpo.rollout import answering, engine, replacement
from grpo.rollout.continued import ContinuedLLM
from grpo.stack import cluster

if TYPE_CHECKING:
    import numpy as np

MOST_RESTARTS = replacement.MOST  # Ray's, of an engine
WORKER = "grpo.lora.side_path.AdapterWorker"  # vLLM imports it in its workers

engine_arguments = engine.arguments  # those that OpenRLHF does not set
bundles = cluster.engine_bundles  # an engine is never split over nodes
end_orphans = engine.end_orphans
continuable = engine.wrap_engine
has_policy = engine.has_policy
require_policy = engine.require_policy
for_sample = engine.make_sample_params
answer = engine.answer
sampled = answering.list_sampled


async def load_adapter(
    llm: ContinuedLLM, buffer: "np.ndarray | None", specs: list[dict[str, Any]]
) -> list[dict[str, int]]:
    """Hand the adapter to the workers of this engine; return their receipts. None: the policy is the base model."""
    receipts = [] if buffer is None else await engine_actor.load_into_engine(llm, buffer, specs)
    llm.has_policy = True
    return receipts
