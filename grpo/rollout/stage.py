"""A stage of a run that samples: an evaluation, or a training step (:class:`grpo.batch.step.Step`).

A stage gives every rollout its seed, and its batch an order. A step repeated after a resume therefore samples the same
responses, whichever engine gets a prompt and in whatever order the engines finish.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from grpo.environments.mixture import KEY
from grpo.environments.settings import environments_by_prompt
from grpo.rollout import greedy
from grpo.rollout.engine_calls import EngineCalls
from grpo.rollout.rows import Sample
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.engine import EngineActor

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


class Stage:
    """One evaluation.

    Args:
        args: OpenRLHF's.
        name: "eval 10", or "train 7" of a step; the seeds follow from it.
        engines: answer the prompts.
        greedy_sample: the number of each prompt's rollout that is greedy; None if none is.

    Attributes:
        drawn: how often the stage has drawn each prompt.
        sampled: set while the engines sample nothing for the stage; None if no caller needs it.
    """

    def __init__(self, args: Arguments, name: str, engines: EngineCalls, greedy_sample: int | None = None) -> None:
        self.args, self.name, self.engines = args, name, engines
        self._greedy_sample = greedy_sample
        self.drawn: Counter[str] = Counter()
        self.sampled: threading.Event | None = None

    # Seeds and order

    def seed_params(self, params: "SamplingParams", prompt: str) -> "SamplingParams":
        """Return the sampling parameters of a prompt's next draw, with a seed from run, stage and prompt.

        A prompt that a stage draws twice gets other rollouts the second time. With several environments, the parameters
        name the prompt's.

        Args:
            params: vLLM's ``SamplingParams``; not modified.
        """
        self.drawn[prompt] += 1
        mine = copy(params)
        mine.seed = self.get_seed(prompt)
        if name := environments_by_prompt(self.args).get(prompt):
            mine.extra_args = {**(mine.extra_args or {}), KEY: name}
        return mine if self._greedy_sample is None else greedy.mark_greedy(mine, self._greedy_sample)

    def get_seed(self, prompt: str) -> int:
        """Return the seed of the prompt's latest draw; its rollouts use this seed, the next one, and so on."""
        text = f"{self.args.seed} {self.name} {self.drawn[prompt]} {prompt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def sort_samples(self, samples: list[Sample]) -> list[Sample]:
        """Return the rollouts of a batch in the order of their groups.

        They arrive in the order in which engines finish, which would otherwise decide micro-batches and optimizer
        steps.

        Args:
            samples: of one row each; those of a group stay next to each other.
        """
        return sorted(samples, key=self.make_sort_key())

    def make_sort_key(self) -> Callable[[Sample], int]:
        """Return a sort key: the position of a rollout's group in the order of the draws. Carried ones are first."""
        order = {prompt: number for number, prompt in enumerate(self.drawn)}
        return lambda sample: order.get(sample.prompts[0], -1)

    # Which groups a batch has: an evaluation takes every one

    def begin(self, prompts: Iterator[Any], groups: int) -> tuple[list[Sample], int, Iterator[Any]]:
        """Return the rollouts that the batch has already, how many prompts to draw at first, and from what.

        Args:
            prompts: the iterator of the prompt loader.
            groups: of a full batch.
        """
        return [], groups, prompts

    def send(self, engine: EngineActor, call: dict[str, Any]) -> Any:
        """Send a prompt to an engine; return Ray's reference to the responses."""
        return self.engines.send(engine, call)

    def wait(self, references: list[Any]) -> tuple[list[Any], list[Any]]:
        """Wait for the responses to a prompt. Return those that are complete, and those still being sampled."""
        ready = self.engines.wait(references, self.sampled)
        return ready, [reference for reference in references if reference not in ready]

    def keep(self, group: list[Sample]) -> list[Sample]:
        """Return the rollouts of a finished group; [] if the batch leaves it out."""
        return group

    def end(self, accepted: list[Sample], is_exhausted: bool) -> tuple[list[Sample], bool]:
        """Return the rollouts of the batch, and whether the prompts ran out before it was full."""
        return accepted, is_exhausted
