"""Hooks of openrlhf/trainer/ray/vllm_engine.py, in the engine's Ray actor. Imports no DeepSpeed."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from grpo.lora import engine_actor
from grpo.rollout import answering, engine, replacement
from grpo.rollout.continued import ContinuedLLM
from grpo.stack import cluster
from grpo.stack.upstream.engine import AsyncLLM, Engine

if TYPE_CHECKING:
    import numpy as np
    from vllm.sampling_params import SamplingParams

MOST_RESTARTS = replacement.MOST  # Ray's, of an engine
WORKER = "grpo.lora.side_path.AdapterWorker"  # vLLM imports it in its workers


def engine_arguments() -> dict[str, Any]:
    """Return the engine arguments that OpenRLHF does not set."""
    return engine.arguments()


def bundles(engines: int, width: int) -> list[dict[str, float]]:
    """Return the resources of each engine's workers: an engine is never split over nodes."""
    return cluster.engine_bundles(engines, width)


def end_orphans() -> None:
    """End what this actor left when it died before."""
    engine.end_orphans()


def continuable(llm: AsyncLLM) -> ContinuedLLM:
    """Return vLLM's engine as one whose rollouts survive a sync, and whose process ends with its core."""
    return engine.continuable(llm)


async def load_adapter(
    llm: ContinuedLLM, buffer: "np.ndarray | None", specs: list[dict[str, Any]]
) -> list[dict[str, int]]:
    """Hand the adapter to the workers of this engine; return their receipts. None: the policy is the base model."""
    receipts = [] if buffer is None else await engine_actor.load_into_engine(llm, buffer, specs)
    llm.has_policy = True
    return receipts


def has_policy(llm: ContinuedLLM) -> bool:
    """Return whether an engine holds the run's policy. Raises vLLM's ``EngineDeadError`` if its process has died."""
    return engine.has_policy(llm)


def require_policy(actor: Engine) -> None:
    """Refuse to sample from an engine that was started again, until it holds the run's policy."""
    engine.require_policy(actor)


def for_sample(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return the sampling parameters of one sample of a prompt."""
    return engine.for_sample(params, number)


async def answer(
    engine_actor: Engine, params: "SamplingParams", samples: Sequence[Coroutine[Any, Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the responses to a prompt, with the engine's id and what it recorded of their tokens."""
    return await engine.answer(engine_actor, params, samples)


def sampled() -> list[int | None]:
    """Return the seeds of the prompts that this engine has sampled, and whose rewards are missing."""
    return answering.sampled()
