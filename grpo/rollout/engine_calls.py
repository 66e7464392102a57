"""Calls to a run's engines. If an engine dies, Ray raises an error in the next call that needs it, and the run ends."""

import threading
from collections.abc import Sequence
from typing import Any

import ray

from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.tokenizer import Tokenizer

_SAMPLED_SECONDS = 0.1


class EngineCalls:
    """Sends requests to the engines of a run.

    Args:
        engines: of the run.
        tokenizer: passed with each call.
    """

    def __init__(self, engines: Sequence[EngineActor], tokenizer: Tokenizer | None) -> None:
        self.engines, self._tokenizer = engines, tokenizer
        # By Ray's reference to the responses: the engine, and the seed of the prompt
        self._calls: dict[Any, tuple[EngineActor, int | None]] = {}

    def send(self, engine: EngineActor, arguments: dict[str, Any]) -> Any:
        """Send a prompt to an engine; return Ray's reference to the responses."""
        reference = engine.generate_responses.remote(**arguments, hf_tokenizer=self._tokenizer)
        self._calls[reference] = engine, arguments["sampling_params"].seed
        return reference

    def wait(self, references: list[Any], sampled: threading.Event | None = None) -> list[Any]:
        """Wait for the responses to a prompt, and return those that have arrived.

        Args:
            sampled: set once all these prompts are sampled and only wait for rewards; None if no caller needs it.

        Raises:
            RayActorError: if an engine has died that samples one of them.
        """
        is_wanted = sampled is not None and not sampled.is_set()
        ready, _ = ray.wait(references, num_returns=1, timeout=_SAMPLED_SECONDS if is_wanted else 10.0)
        for reference in ready:
            self._calls.pop(reference, None)
        if sampled is not None and is_wanted and not ready and self._are_sampled(references):
            sampled.set()
        return ready

    def _are_sampled(self, references: Sequence[Any]) -> bool:
        """Return whether the answers to all these prompts only wait for rewards."""
        engines, prompts = zip(*(self._calls[reference] for reference in references), strict=True)
        involved = [engine for engine in self.engines if engine in engines]
        seeds = {seed for known in ray.get([engine.sampled.remote() for engine in involved]) for seed in known}
        return seeds.issuperset(prompts)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Give engines that share their GPUs the memory of their "weights" and of their "kv_cache" again."""
        ray.get([engine.wake_up.remote(tags=list(tags)) for engine in self.engines])

    def sleep(self) -> None:
        """Take this memory from the engines, for the actor."""
        ray.get([engine.sleep.remote() for engine in self.engines])

    def loads(self) -> list[int]:
        """Return the number of requests that each engine has not finished."""
        loads: list[int] = ray.get([engine.get_num_unfinished_requests.remote() for engine in self.engines])
        return loads
