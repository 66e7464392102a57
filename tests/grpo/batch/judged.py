"""A generator of samples whose batches wait for their rewards."""

import collections
import threading
from types import SimpleNamespace

import torch


class Judged:
    """A generator whose batches are sampled and get their rewards when they are told to.

    Attributes:
        begun: the arguments of the batches that were begun.
        may_be_sampled, may_be_rewarded: whether a batch may go on, by its step.
    """

    def __init__(self, error: Exception | None = None, **changes) -> None:
        values = {"retire_after": None, "retire_for": 1, "seed": 0, "dynamic_filtering": False, "partial_rollouts": 0}
        self.args = SimpleNamespace(**values | {"pipeline": True} | changes)
        self.prompts_dataloader = SimpleNamespace(sampler=SimpleNamespace(generator=torch.Generator()))
        self.begun, self.error = [], error
        self.may_be_sampled, self.may_be_rewarded = (collections.defaultdict(threading.Event) for _ in range(2))

    def generate_samples(self, **arguments):
        step = int(self.stage.removeprefix("train "))
        self.begun.append(arguments)
        assert self.may_be_sampled[step].wait(60)
        if self.sampled is not None:
            self.sampled.set()
        assert self.may_be_rewarded[step].wait(60)
        if self.error:
            raise self.error
        return [SimpleNamespace(of=step)], None, 1, False
