"""An engine that dies while it samples is replaced: its prompts are sampled again with their seeds.

Ray starts its actor again, in its place and with its arguments. A started actor answers no prompt until it holds the
run's policy, so the controller installs the adapter of the last sync before it sends the lost prompts again.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from grpo.lora.engine_actor import NoPolicyError, check_receipts
from grpo.stack import cluster
from grpo.stack.upstream.engine import EngineActor
from grpo.stack.upstream.tokenizer import Tokenizer

if TYPE_CHECKING:
    from grpo.lora.sync import Sent

logger = logging.getLogger("openrlhf.grpo.replacement")

MOST = 3  # in one part of a run; the next death of an engine ends it
START_SECONDS = 3600.0  # the launcher notices a start that hangs
_LOOK_SECONDS = 1.0
_SAMPLED_SECONDS = 0.1


class EngineCalls:
    """What a run's engines are asked, and what replaces those that die.

    Args:
        engines: of the run.
        tokenizer: each call has it.

    Attributes:
        replaced: how many engines so far.
        policy: the number of the policy that samples; None without PARTIAL_ROLLOUTS.
        adapter: what the last sync sent; None before the first; the policy is then the base model.
        note: called for each replacement with what it was: ``engine``, ``seconds``, ``prompts``.
        phase: the context in which an engine is replaced.
        lost, back: called with an engine that has died, and when it has started again.
    """

    def __init__(self, engines: Sequence[EngineActor], tokenizer: Tokenizer | None) -> None:
        self.engines, self._tokenizer = engines, tokenizer
        # By Ray's reference to the responses: the engine, and the arguments of its ``generate_responses``
        self._calls: dict[Any, tuple[EngineActor, dict[str, Any]]] = {}
        # The threads of two batches may notice the same death, and a sync must not meet the adapter before it.
        self._changing = threading.Lock()
        self.replaced = self._told = 0
        self.policy: int | None = None
        self.adapter: Sent | None = None
        self.note: Callable[[dict[str, Any]], None] = lambda _: None
        self.phase: Callable[[], AbstractContextManager[None]] = nullcontext
        self.lost: Callable[[EngineActor], None] = lambda _: None
        self.back: Callable[[EngineActor], None] = lambda _: None

    def send(self, engine: EngineActor, arguments: dict[str, Any]) -> Any:
        """Send a prompt to an engine; return Ray's reference to the responses."""
        reference = engine.generate_responses.remote(**arguments, hf_tokenizer=self._tokenizer)
        self._calls[reference] = engine, arguments
        return reference

    def wait(self, references: list[Any], sampled: threading.Event | None = None) -> tuple[list[Any], dict[Any, Any]]:
        """Wait for the responses to a prompt.

        Args:
            sampled: is set while all these prompts are sampled, and only wait for rewards; None: nobody asks.

        Returns:
            those that are there; and if an engine was replaced, the new reference of each prompt that it lost.

        Raises:
            RayActorError: if an engine died and is not replaced, because there were too many or it did not start.
        """
        is_asked = sampled is not None and not sampled.is_set()
        ready, _ = ray.wait(references, num_returns=1, timeout=_SAMPLED_SECONDS if is_asked else 10.0)
        for reference in ready:
            if error := _loss(reference):
                if sampled is not None:  # before the engine lives: the sync must not meet what is sampled again
                    sampled.clear()
                return [], self._replace(self._calls[reference][0], error, references)
            self._calls.pop(reference, None)
        if sampled is not None and is_asked and not ready and self._are_sampled(references):
            sampled.set()
        return ready, {}

    def _are_sampled(self, references: Sequence[Any]) -> bool:
        """Return whether the answers to all these prompts only wait for rewards."""
        from vllm.v1.engine.exceptions import EngineDeadError

        engines, arguments = zip(*(self._calls[reference] for reference in references), strict=True)
        asked = [engine for engine in self.engines if engine in engines]
        try:
            seeds = {seed for known in ray.get([engine.sampled.remote() for engine in asked]) for seed in known}
        except (RayActorError, EngineDeadError):  # :meth:`wait` replaces it
            return False
        return all(each["sampling_params"].seed in seeds for each in arguments)

    def wake_up(self, tags: Sequence[str]) -> None:
        """Give engines that share their GPUs the memory of their "weights" and of their "kv_cache" again."""
        ray.get([engine.wake_up.remote(tags=list(tags)) for engine in self.engines])

    def sleep(self) -> None:
        """Take this memory from the engines, for the actor."""
        ray.get([engine.sleep.remote() for engine in self.engines])

    def loads(self) -> list[int]:
        """Return the number of requests that each engine has not finished. One that died is replaced."""
        asked = [engine.get_num_unfinished_requests.remote() for engine in self.engines]
        return [self._load(engine, reference) for engine, reference in zip(self.engines, asked, strict=True)]

    def _load(self, engine: EngineActor, reference: Any) -> int:
        if error := _loss(reference):
            self._replace(engine, error, [])
            return 0
        return int(ray.get(reference))

    def sync(self, send: Callable[[], "Sent"]) -> None:
        """Send an adapter to the engines, after those that have died since they sampled are replaced.

        An engine that dies meanwhile fails the sync.

        Args:
            send: brings every engine to the adapter, and returns what it has sent.
        """
        asked = [engine.has_policy.remote() for engine in self.engines]
        for engine, reference in zip(self.engines, asked, strict=True):
            if error := _loss(reference):
                self._replace(engine, error, [])
            elif not ray.get(reference):
                self._replace(engine, NoPolicyError("it was started again"), [])
        with self._changing:
            self.adapter = send()

    def replaced_since(self) -> int:
        """Return how many engines were replaced since the last call."""
        self._told, before = self.replaced, self._told
        return self.replaced - before

    def _replace(self, engine: EngineActor, error: Exception, references: Sequence[Any]) -> dict[Any, Any]:
        """Wait until an engine lives again, and send its lost prompts again."""
        started = time.monotonic()
        with self._changing:
            if self.replaced >= MOST:
                raise error
            logger.warning("an engine died (%s); it is started again", str(error).partition("\n")[0])
            with self.phase():
                self.lost(engine)
                has_policy = _has_policy(engine, error)
                self.back(engine)
                if not has_policy:
                    self._install(engine)
                    self.replaced += 1
        mine = [reference for reference in references if self._calls[reference][0] == engine]
        lost = [reference for reference in mine if _is_over(reference) and _loss(reference)]
        again = {reference: self.send(engine, self._calls.pop(reference)[1]) for reference in lost}
        seconds = time.monotonic() - started
        self.note({"engine": engine._actor_id.hex(), "seconds": seconds, "prompts": len(lost)})
        return again

    def _install(self, engine: EngineActor) -> None:
        if self.adapter is None:
            ray.get(engine.load_adapter.remote(None, []))
        else:
            receipts = ray.get(engine.load_adapter.remote(self.adapter.buffer, self.adapter.fields))
            check_receipts([receipts], self.adapter.expected)
        if self.policy is not None:
            ray.get(engine.go_on.remote(self.policy, [], {}))


def _is_over(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])


def _loss(reference: Any) -> Exception | None:
    """Return the death of the engine that would have answered; None if it has, or failed otherwise."""
    from vllm.v1.engine.exceptions import EngineDeadError  # imports vLLM

    try:
        ray.get(reference)
    except (RayActorError, EngineDeadError, NoPolicyError) as error:
        return error
    except Exception:  # OpenRLHF's loop raises it
        return None
    return None


def _has_policy(engine: EngineActor, error: Exception) -> bool:
    """Wait until an engine has started; return whether it holds the run's policy."""
    from vllm.v1.engine.exceptions import EngineDeadError

    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            return bool(ray.get(engine.has_policy.remote()))
        except (ActorUnavailableError, EngineDeadError):  # it starts, or has yet to end
            if cluster.lost_nodes():  # Ray would wait for its node without limit
                break
            time.sleep(_LOOK_SECONDS)
    raise error
