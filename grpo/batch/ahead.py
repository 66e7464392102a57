"""The batch of each global step: sampled when the step begins or, with PIPELINE=1, while the step before trains.

A batch is always sampled whole by one policy, that of the last sync: the engines get a new adapter only after
:meth:`Batches.wait`. Its last answers may then still wait for their rewards. That takes no engine, so the batch after
it can be begun (:meth:`Batches.sample_ahead`). Between two steps nothing is sampled: evaluations have the engines to
themselves, and a checkpoint holds the batch of the next step as it is (:meth:`Batches.state`).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from grpo.batch.step import Step, StepGroups
from grpo.rollout.rows import Sample, dump_sample, restore_sample
from grpo.stack.upstream.arguments import Arguments
from reward import judge_actor

# Rollouts, pass rate of dynamic filtering, prompts drawn, whether the episode ended before the batch was full
Result = tuple[list[Sample], float | None, int, bool]


class Sampled(threading.Event):
    """Is set while the engines sample nothing for a batch.

    Attributes:
        seconds: from the beginning of the sampling to its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started, self.seconds = time.monotonic(), 0.0

    def set(self) -> None:
        """Note that the engines have sampled the batch."""
        if not self.is_set():
            self.seconds = time.monotonic() - self._started
        super().set()


@dataclass
class StepBatch:
    """The batch of a global step.

    Attributes:
        step: the global step.
        policy: the optimizer steps of the policy that samples it.
        groups: what the step draws and leaves out.
        results: one for each episode that ended before the batch was full, and then the batch.
        taken: how many of the results are handed out.
        sampled: whether the engines have sampled it.
        end: of its sampling and its rewards, in a thread; None if it was not sampled in one.
    """

    step: int
    policy: int
    groups: StepGroups
    results: list[Result] = field(default_factory=list)
    taken: int = 0
    sampled: Sampled = field(default_factory=Sampled)
    end: "Future[None] | None" = None

    def wait_sampled(self) -> "StepBatch":
        """Wait until the engines have sampled the batch. Raises what the sampling raised, if that has ended."""
        if self.end is not None:
            self.sampled.wait()
            if self.end.done():
                self.end.result()
        return self

    def wait(self) -> "StepBatch":
        """Wait until the batch has its rewards. Raises what the sampling raised."""
        if self.end is not None:
            self.end.result()
        return self

    def ended_episodes(self) -> int:
        """Return how many episodes ended before the batch was full, once it is sampled."""
        return sum(result[-1] for result in self.results)

    def is_full(self) -> bool:
        """Return whether the prompts sufficed for the batch, once it is sampled."""
        has_all_results = self.end is None or self.end.done()
        return not (has_all_results and self.results[-1][-1])


class Batches:
    """Hands out the batch of each step.

    Args:
        args: OpenRLHF's.
        begin_step: makes the sampling of a global step.
        sample: samples one batch, or as much of it as the prompts of the episode suffice for.

    Attributes:
        policy: the optimizer steps of the policy that the engines hold.
        current: the batch that is handed out; None before the first.
        phase: the context of a phase of the step, as ``RunLog.phase``.
        note_seconds: adds seconds to a phase of the step, as ``RunLog.note_seconds``.
    """

    current: StepBatch | None

    def __init__(self, args: Arguments, begin_step: Callable[[int], Step], sample: Callable[[Step], Result]) -> None:
        self._args, self._begin_step, self._sample_batch = args, begin_step, sample
        self.policy, self.current = 0, None
        self._waiting: list[StepBatch] = []  # for their steps, in order: one, or two while the first gets its rewards
        self.phase: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
        self.note_seconds: Callable[[str, float], None] = lambda *_: None

    def take(self, episode: int, step: int) -> Result:
        """Return the next result of a step's batch: the batch, or that the episode ended before it was full.

        Args:
            episode: from 0.
            step: the global step.

        Raises:
            RuntimeError: if the judge has died.
        """
        if not self._waiting:
            batch, sampling = self._begin(step)
            with self.phase("generate"):
                self._sample(batch, sampling, episode)
        batch = self._wait_for(self._waiting[0])
        result = batch.results[batch.taken]
        batch.taken += 1
        if batch.taken == len(batch.results):
            self.current = self._waiting.pop(0)
            if batch.end is not None:
                self.note_seconds("generate", batch.sampled.seconds)
        return result

    def sample_ahead(self, episode: int, step: int) -> None:
        """Start to sample the batch of the step after `step` as soon as the engines have sampled that of `step`.

        Rewards of the latter may still be missing; :meth:`take` waits for them.
        """
        if not self._waiting:
            self._start(episode, step)
        if len(self._waiting) == 1:
            batch = self._waiting[0]
            with self.phase("wait"):
                batch.wait_sampled()
            if batch.is_full():
                self._start(episode + batch.ended_episodes(), step + 1)

    def wait(self) -> None:
        """Wait until the engines sample nothing: the sync is next.

        Raises:
            Exception: what the sampling raised.
        """
        for batch in self._waiting:
            with self.phase("wait"):
                batch.wait_sampled()

    def next_samples(self) -> list[Sample]:
        """Wait for the rewards of the batch that waits for its step. Return its rollouts, [] if there is none.

        Raises:
            Exception: what the sampling raised.
        """
        return self._wait_for(self._waiting[0]).results[-1][0] if self._waiting else []

    def staleness(self) -> int:
        """Return by how many optimizer steps the policy that sampled the current batch is behind the engines'."""
        assert self.current is not None
        return self.policy - self.current.policy

    def _wait_for(self, batch: StepBatch) -> StepBatch:
        if batch.end is not None:
            with self.phase("wait"):
                batch.wait()
        return batch

    def _begin(self, step: int) -> tuple[StepBatch, Step]:
        sampling = self._begin_step(step)
        batch = StepBatch(step, self.policy, sampling.groups)
        sampling.sampled = batch.sampled if _ends_with_its_prompts(self._args) else None
        self._waiting.append(batch)
        return batch, sampling

    def _start(self, episode: int, step: int) -> None:
        batch, sampling = self._begin(step)
        end = Future[None]()

        def sample() -> None:
            try:
                self._sample(batch, sampling, episode)
                end.set_result(None)
            except BaseException as error:
                end.set_exception(error)
            finally:
                batch.sampled.set()

        batch.end = end
        # A run that fails meanwhile ends without waiting for the engines.
        threading.Thread(target=sample, name=f"sampling of step {step}", daemon=True).start()

    def _sample(self, batch: StepBatch, sampling: Step, episode: int) -> None:
        for _ in range(episode, self._args.num_episodes):
            batch.results.append(self._sample_batch(sampling))
            if not batch.results[-1][-1]:
                break
        judge_actor.require()

    def state(self) -> Callable[[], dict[str, Any]] | None:
        """Return what computes the state of the batch that waits for its step; None if there is none.

        It waits for the batch's rewards. The result holds tensors and plain values. It is the same until the step of
        the batch begins to train.
        """
        if not self._waiting:
            return None
        batch, staleness = self._waiting[0], self.policy - self._waiting[0].policy

        def compute() -> dict[str, Any]:
            self._wait_for(batch)
            return {
                "step": batch.step,
                "staleness": staleness,
                "groups": batch.groups.state(),
                "results": [([dump_sample(sample) for sample in samples], *rest) for samples, *rest in batch.results],
            }

        return compute

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        results: list[Result] = [
            ([restore_sample(sample) for sample in samples], *rest) for samples, *rest in state["results"]
        ]
        groups = StepGroups(**state["groups"])
        self._waiting = [StepBatch(state["step"], self.policy - state["staleness"], groups, results)]


def _ends_with_its_prompts(args: Arguments) -> bool:
    """Return whether a batch is sampled once its prompts are.

    Dynamic filtering draws others in place of those that rewards leave out.
    """
    return args.pipeline and not args.dynamic_filtering
