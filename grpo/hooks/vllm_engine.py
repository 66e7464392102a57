"""Hooks of openrlhf/trainer/ray/vllm_engine.py, in the engine's Ray actor. Imports no DeepSpeed."""

from typing import TYPE_CHECKING

from grpo.lora import sync
from grpo.rollout import engine, stage
from grpo.stack import cluster
from grpo.stack.upstream import AsyncLLM

if TYPE_CHECKING:
    from grpo.model.shared_base import Description

WORKER = "grpo.lora.vllm_lora.AdapterWorker"  # vLLM imports it in its workers

engine_arguments = engine.arguments  # those that OpenRLHF does not set
bundles = cluster.engine_bundles
end_with_core = engine.end_with_core
for_sample = stage.for_sample
answer = engine.answer
sampled = engine.list_sampled
load_adapter = sync.load_into_engine


async def describe_base(llm: AsyncLLM) -> "Description":
    """Describe the frozen base in the engine's only worker."""
    description: Description
    [description] = await llm.collective_rpc("describe_base")
    return description
