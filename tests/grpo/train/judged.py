"""A sampler whose batches wait for their rewards."""

import collections
import threading
from types import SimpleNamespace

from grpo.train.rollout_filters import Drawn, Step


class Judged:
    """A sampler whose batches are sampled and get their rewards when they are told to.

    Attributes:
        begun: the steps whose sampling was begun.
        may_be_sampled, may_be_rewarded: whether a batch may go on, by its step.
        limit: of the steps that begin now.
    """

    def __init__(self, error: Exception | None = None, **changes) -> None:
        values = {"num_episodes": 1, "seed": 0, "dynamic_filtering": False, "pipeline": True}
        self.args, self.limit = SimpleNamespace(**values | changes), 9
        self.begun, self.error = [], error
        self.may_be_sampled, self.may_be_rewarded = (collections.defaultdict(threading.Event) for _ in range(2))

    def begin_step(self, number: int) -> Step:
        return Step(self.args, number, max_new_tokens=self.limit)

    def sample_step(self, step: Step) -> Drawn:
        number = step.groups.step
        self.begun.append(number)
        assert self.may_be_sampled[number].wait(60)
        if step.sampled is not None:
            step.sampled.set()
        assert self.may_be_rewarded[number].wait(60)
        if self.error:
            raise self.error
        return Drawn([SimpleNamespace(of=number, limit=step.max_new_tokens)], None, 1, False)
