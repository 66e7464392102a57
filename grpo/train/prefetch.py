"""The batch of each global step: sampled when the step begins or, with --pipeline, while the step before trains.

One policy samples a whole batch, that of the last sync: engines get a new adapter only after
:meth:`Prefetch.wait_until_sampled`. The last answers of the batch may then still wait for their rewards, which need no
engine. So the engines can begin the batch after it (:meth:`Prefetch.start_next_batch`). Between two steps nothing is
sampled: evaluations have the engines to themselves, and a checkpoint holds the batch of the next step.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from grpo.rollout.rows import Sample, dump_sample, restore_sample
from grpo.run.run_log import RunLog
from grpo.stack.upstream import Arguments
from grpo.train.rollout_filters import Drawn, StepGroups
from grpo.train.sampler import Sampler
from reward import judge_actor


class Sampled(threading.Event):
    """Set once the engines have sampled a batch; ``seconds`` says how long that took."""

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
        policy: the optimizer steps of the policy that samples it.
        groups: what the step draws and leaves out.
        is_early: whether its sampling began before its step asked for it.
        drawn: one for each episode that ended before the batch was full, and then the batch.
        taken: how many of these the step has.
        sampled: whether the engines have sampled it.
        end: of the thread that samples and rewards it.
    """

    step: int
    policy: int
    groups: StepGroups
    is_early: bool = False
    drawn: list[Drawn] = field(default_factory=list)
    taken: int = 0
    sampled: Sampled = field(default_factory=Sampled)
    end: "Future[None]" = field(default_factory=Future)


class Prefetch:
    """Samples the batch of each step in a thread.

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

        Raises:
            RuntimeError: if the judge has died.
        """
        if not self._waiting:
            self._start(episode, step)
        batch = self._waiting[0]
        with self._log.phase("wait" if batch.is_early else "generate"):
            batch.end.result()
        drawn = batch.drawn[batch.taken]
        batch.taken += 1
        if batch.taken == len(batch.drawn):
            self.current = self._waiting.pop(0)
            if batch.is_early:
                self._log.note_seconds("generate", batch.sampled.seconds)
        return drawn

    def start_next_batch(self, episode: int, step: int) -> None:
        """Start to sample the batch of the step after `step` as soon as the engines have sampled that of `step`.

        Rewards of the latter may still be missing; :meth:`take` waits for them.
        """
        if not self._waiting:
            self._start(episode, step, is_early=True)
        if len(self._waiting) > 1:  # the second call of a step that goes on in the next episode
            return
        self.wait_until_sampled()
        [batch] = self._waiting
        has_run_out = batch.end.done() and batch.drawn[-1].is_over  # the last episode had too few prompts
        if not has_run_out:
            self._start(episode + sum(drawn.is_over for drawn in batch.drawn), step + 1, is_early=True)

    def wait_until_sampled(self) -> None:
        """Wait until the engines sample nothing: the sync is next.

        Raises:
            Exception: what the sampling raised.
        """
        for batch in self._waiting:
            with self._log.phase("wait"):
                batch.sampled.wait()
            if batch.end.done():
                batch.end.result()

    def get_next_rollouts(self) -> list[Sample]:
        """Wait for the rewards of the batch that waits for its step. Return its rollouts, [] if there is none.

        Raises:
            Exception: what the sampling raised.
        """
        if not self._waiting:
            return []
        batch = self._waiting[0]
        with self._log.phase("wait"):
            batch.end.result()
        return batch.drawn[-1].rollouts

    def compute_staleness(self) -> int:
        """Return by how many optimizer steps the policy that sampled the current batch is behind the engines'."""
        assert self.current is not None
        return self.policy - self.current.policy

    def _start(self, episode: int, step: int, is_early: bool = False) -> None:
        sampled = Sampled()
        # Dynamic filtering draws other prompts in place of those that rewards leave out: only its end is known.
        is_noted = self._args.pipeline and not self._args.dynamic_filtering
        sampling = self._sampler.begin_step(step, sampled if is_noted else None)
        batch = StepBatch(step, self.policy, sampling.groups, is_early, sampled=sampled)
        self._waiting.append(batch)

        def sample() -> None:
            try:
                for _ in range(episode, self._args.num_episodes):
                    batch.drawn.append(self._sampler.sample_step(sampling))
                    if not batch.drawn[-1].is_over:
                        break
                judge_actor.require()
                batch.end.set_result(None)
            except BaseException as error:  # even SystemExit: otherwise the loop would wait forever
                batch.end.set_exception(error)
            finally:
                batch.sampled.set()  # after the end, which whoever waits for this reads next

        # A daemon: a run that fails meanwhile ends without waiting for the engines.
        threading.Thread(target=sample, name=f"sampling of step {step}", daemon=True).start()

    def get_state(self) -> Callable[[], dict[str, Any]] | None:
        """Return what computes the state of the batch that waits for its step; None if there is none.

        It waits for the batch's rewards. Its result is the same until the step of the batch begins to train.
        """
        if not self._waiting:
            return None
        batch, staleness = self._waiting[0], self.policy - self._waiting[0].policy

        def compute() -> dict[str, Any]:
            batch.end.result()
            drawn = [vars(it) | {"rollouts": [dump_sample(one) for one in it.rollouts]} for it in batch.drawn]
            groups = dict(vars(batch.groups))
            return {"step": batch.step, "staleness": staleness, "groups": groups, "drawn": drawn}

        return compute

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_state`."""
        batch = StepBatch(state["step"], self.policy - state["staleness"], StepGroups(**state["groups"]), is_early=True)
        for saved in state["drawn"]:
            rollouts = [restore_sample(one) for one in saved["rollouts"]]
            batch.drawn.append(Drawn(**saved | {"rollouts": rollouts}))
        batch.end.set_result(None)
        batch.sampled.set()
        self._waiting = [batch]
