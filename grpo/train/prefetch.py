"""The batch of each global step: sampled when the step begins or, with --pipeline, while the step before trains.

A batch is always sampled whole by one policy, that of the last sync: the engines get a new adapter only after
:meth:`Prefetch.wait`. Its last answers may then still wait for their rewards. That takes no engine, so the batch after
it can be begun (:meth:`Prefetch.start_next_batch`). Between two steps nothing is sampled: evaluations have the engines
to themselves, and a checkpoint contains the batch of the next step (:meth:`Prefetch.state`).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from grpo.rollout.rows import Sample, dump_sample, restore_sample
from grpo.run.run_log import RunLog
from grpo.stack.upstream.arguments import Arguments
from grpo.train.rollout_filters import Drawn, Step, StepGroups
from grpo.train.sampler import Sampler
from reward import judge_actor


class Sampled(threading.Event):
    """Is set once the engines have sampled a batch.

    Attributes:
        seconds: that it took.
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
        drawn: one for each episode that ended before the batch was full, and then the batch.
        taken: how many of these the step has.
        sampled: whether the engines have sampled it.
        end: of its sampling and its rewards, in a thread; None if it was not sampled in one.
    """

    step: int
    policy: int
    groups: StepGroups
    drawn: list[Drawn] = field(default_factory=list)
    taken: int = 0
    sampled: Sampled = field(default_factory=Sampled)
    end: "Future[None] | None" = None

    def wait_sampled(self) -> None:
        """Wait until the engines have sampled the batch. Raises what the sampling raised, if that has ended."""
        if self.end is not None:
            self.sampled.wait()
            if self.end.done():
                self.end.result()

    def is_full(self) -> bool:
        """Return whether the prompts sufficed for the batch, once it is sampled."""
        has_ended = self.end is None or self.end.done()
        return not (has_ended and self.drawn[-1].is_over)


class Prefetch:
    """Samples the batch of each step, when the step begins or ahead of it.

    Args:
        args: OpenRLHF's.
        sampler: begins steps and samples their batches.
        log: of the run, for the seconds of its phases.

    Attributes:
        policy: the optimizer steps of the policy that the engines hold.
        current: the batch that the step has; None before the first.
    """

    current: StepBatch | None

    def __init__(self, args: Arguments, sampler: Sampler, log: RunLog) -> None:
        self._args, self._sampler, self._log = args, sampler, log
        self.policy, self.current = 0, None
        self._waiting: list[StepBatch] = []  # for their steps, in order: one, or two while the first gets its rewards

    def take(self, episode: int, step: int) -> Drawn:
        """Return what a step draws next: its batch, or that the episode ended before it was full.

        Args:
            episode: from 0.
            step: the global step.

        Raises:
            RuntimeError: if the judge has died.
        """
        if not self._waiting:
            batch, sampling = self._begin(step)
            with self._log.phase("generate"):
                self._sample(batch, sampling, episode)
        batch = self._wait_for(self._waiting[0])
        drawn = batch.drawn[batch.taken]
        batch.taken += 1
        if batch.taken == len(batch.drawn):
            self.current = self._waiting.pop(0)
            if batch.end is not None:
                self._log.note_seconds("generate", batch.sampled.seconds)
        return drawn

    def start_next_batch(self, episode: int, step: int) -> None:
        """Start to sample the batch of the step after `step` as soon as the engines have sampled that of `step`.

        Rewards of the latter may still be missing; :meth:`take` waits for them.
        """
        if not self._waiting:
            self._start(episode, step)
        if len(self._waiting) == 1:
            batch = self._waiting[0]
            self.wait()
            if batch.is_full():
                self._start(episode + sum(drawn.is_over for drawn in batch.drawn), step + 1)

    def wait(self) -> None:
        """Wait until the engines sample nothing: the sync is next.

        Raises:
            Exception: what the sampling raised.
        """
        for batch in self._waiting:
            with self._log.phase("wait"):
                batch.wait_sampled()

    def next_rollouts(self) -> list[Sample]:
        """Wait for the rewards of the batch that waits for its step. Return its rollouts, [] if there is none.

        Raises:
            Exception: what the sampling raised.
        """
        return self._wait_for(self._waiting[0]).drawn[-1].rollouts if self._waiting else []

    def staleness(self) -> int:
        """Return by how many optimizer steps the policy that sampled the current batch is behind the engines'."""
        assert self.current is not None
        return self.policy - self.current.policy

    def _wait_for(self, batch: StepBatch) -> StepBatch:
        """Wait until a batch has its rewards. Raises what the sampling raised."""
        if batch.end is not None:
            with self._log.phase("wait"):
                batch.end.result()
        return batch

    def _begin(self, step: int) -> tuple[StepBatch, Step]:
        sampling = self._sampler.begin_step(step)
        batch = StepBatch(step, self.policy, sampling.groups)
        # Dynamic filtering draws other prompts in place of those that rewards leave out: only its end is known.
        if self._args.pipeline and not self._args.dynamic_filtering:
            sampling.sampled = batch.sampled
        self._waiting.append(batch)
        return batch, sampling

    def _start(self, episode: int, step: int) -> None:
        batch, sampling = self._begin(step)
        batch.end = end = Future[None]()

        def sample() -> None:
            try:
                self._sample(batch, sampling, episode)
                end.set_result(None)
            except BaseException as error:
                end.set_exception(error)
            finally:
                batch.sampled.set()

        # A run that fails meanwhile ends without waiting for the engines.
        threading.Thread(target=sample, name=f"sampling of step {step}", daemon=True).start()

    def _sample(self, batch: StepBatch, sampling: Step, episode: int) -> None:
        for _ in range(episode, self._args.num_episodes):
            batch.drawn.append(self._sampler.sample_step(sampling))
            if not batch.drawn[-1].is_over:
                break
        judge_actor.require()

    def state(self) -> Callable[[], dict[str, Any]] | None:
        """Return what computes the state of the batch that waits for its step; None if there is none.

        It waits for the batch's rewards. Its result is the same until the step of the batch begins to train.
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
                "results": [
                    ([dump_sample(one) for one in drawn.rollouts], drawn.pass_rate, drawn.prompts, drawn.is_over)
                    for drawn in batch.drawn
                ],
            }

        return compute

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        drawn = [Drawn([restore_sample(one) for one in rollouts], *rest) for rollouts, *rest in state["results"]]
        groups = StepGroups(**state["groups"])
        self._waiting = [StepBatch(state["step"], self.policy - state["staleness"], groups, drawn)]
