"""The batch of each global step: sampled when the step begins or, with PIPELINE=1, while the step before trains.

A batch is always sampled whole by one policy, that of the last sync: the engines get a new adapter only after
:meth:`Batches.wait`. Between two steps nothing is sampled, so evaluations have the engines to themselves, and a
checkpoint holds the batch of the next step as it is (:meth:`Batches.state`).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from grpo.batch import filtering
from grpo.batch.saved_samples import filled, plain
from grpo.stack.upstream.experience import Sample
from grpo.stack.upstream.trainer import SamplesGenerator
from reward import judge_place

# Of OpenRLHF's ``generate_samples``: rollouts, pass rate of dynamic filtering, prompts drawn, whether the episode ended
Result = tuple[list[Sample], float | None, int, bool]


@dataclass
class StepBatch:
    """The batch of a global step.

    Attributes:
        step: the global step.
        policy: the optimizer steps of the policy that samples it.
        groups: what the step draws and leaves out.
        results: once it is sampled, one for each episode that ended before the batch was full, and then the batch.
        sampling: the sampling, which a thread does; None once ``results`` are there.
    """

    step: int
    policy: int
    groups: filtering.StepGroups
    results: list[Result]
    sampling: "Future[list[Result]] | None" = None

    def wait(self) -> "StepBatch":
        """Wait until the batch is sampled.

        Raises:
            Exception: what its sampling raised.
        """
        if self.sampling is not None:
            self.results, self.sampling = self.sampling.result(), None
        return self


class Batches:
    """Hands out the batch of each step.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``.
        arguments: returns the arguments of ``generate_samples`` for a step.
        episodes: how often the prompts are drawn.

    Attributes:
        policy: the optimizer steps of the policy that the engines hold.
        current: the batch that is handed out; None before the first.
    """

    current: StepBatch | None

    def __init__(self, generator: SamplesGenerator, arguments: Callable[[int], dict[str, Any]], episodes: int) -> None:
        self._generator, self._arguments, self._episodes = generator, arguments, episodes
        self.policy, self.current = 0, None
        self._next: StepBatch | None = None

    def take(self, episode: int, step: int) -> Result:
        """Return the next result of a step's batch: the batch, or that the episode ended before it was full.

        Args:
            episode: of OpenRLHF's loop, from 0.
            step: the global step.

        Raises:
            RuntimeError: if the judge of a run on several nodes has died.
        """
        if self._next is None:
            self._next = self._begin(step)
            self._next.results = self._sample(episode, self._arguments(step))
        batch = self._next.wait()
        result = batch.results.pop(0)
        if not batch.results:
            self.current, self._next = batch, None
        return result

    def sample_ahead(self, episode: int, step: int) -> None:
        """Start to sample the batch of a later step, which :meth:`take` then returns."""
        self._next = self._begin(step)
        arguments, sampling = self._arguments(step), Future[list[Result]]()

        def sample() -> None:
            try:
                sampling.set_result(self._sample(episode, arguments))
            except BaseException as error:
                sampling.set_exception(error)

        self._next.sampling = sampling
        # A run that fails meanwhile ends without waiting for the engines.
        threading.Thread(target=sample, name=f"sampling of step {step}", daemon=True).start()

    def wait(self) -> list[Sample]:
        """Wait until nothing is being sampled. Return the batch that waits for its step, [] if there is none.

        Raises:
            Exception: what the sampling raised.
        """
        return self._next.wait().results[-1][0] if self._next else []

    def staleness(self) -> int:
        """Return by how many optimizer steps the policy that sampled the current batch is behind the engines'."""
        assert self.current is not None
        return self.policy - self.current.policy

    def _begin(self, step: int) -> StepBatch:
        filtering.begin_step(self._generator, step)
        self._generator.policy = self.policy
        return StepBatch(step, self.policy, self._generator.groups, [])

    def _sample(self, episode: int, arguments: dict[str, Any]) -> list[Result]:
        results: list[Result] = []
        for _ in range(episode, self._episodes):
            results.append(self._generator.generate_samples(**arguments))
            if not results[-1][-1]:
                break
        judge_place.require()
        return results

    def state(self) -> dict[str, Any] | None:
        """Return the batch that waits for its step as tensors and plain values; None if there is none."""
        if self._next is None:
            return None
        batch = self._next.wait()
        return {
            "step": batch.step,
            "staleness": self.policy - batch.policy,
            "groups": filtering.plain(batch.groups),
            "results": [([plain(sample) for sample in samples], *rest) for samples, *rest in batch.results],
        }

    def restore(self, state: dict[str, Any], make: Callable[[], Sample]) -> None:
        """Continue from :meth:`state`.

        Args:
            make: returns an empty sample.
        """
        results: list[Result] = [
            ([filled(make, sample) for sample in samples], *rest) for samples, *rest in state["results"]
        ]
        groups = filtering.groups_of(state["groups"])
        self._next = StepBatch(state["step"], self.policy - state["staleness"], groups, results)
