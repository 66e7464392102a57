"""A stage of a run that samples: an evaluation, or a training step (:class:`grpo.train.rollout_filters.Step`).

A stage gives every rollout its seed, and its batch an order. A step repeated after a resume therefore samples the same
responses, whichever engine gets a prompt and in whatever order the engines finish. Sampling parameters tell the
rollouts of a prompt apart: by seed, greedy answer, and recorded name.

An evaluation draws a greedy answer beside the samples of each problem. Training makes answers more likely that were
already the likeliest, which raises the exact match of samples but not that of greedy answers. The two together tell
this sharpening from learning. The greedy answer is one more sample of the prompt, so that the engines decode it
together with the others. It is drawn by `top_k=1`, not at temperature 0: beside a request at temperature 0, vLLM on a
CPU draws all others without their seeds. Of equally likely tokens, one is drawn.
"""

import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from grpo.environments.settings import KEY, environments_by_prompt
from grpo.stack.upstream import ROLLOUT, Arguments

if TYPE_CHECKING:  # the launcher, which reads this, starts without PyTorch
    from vllm.sampling_params import SamplingParams

    from grpo.rollout.rows import Sample

_GREEDY = "greedy"  # in a request's extra_args: the number of the sample that is greedy


class Stage:
    """One evaluation.

    Args:
        args: OpenRLHF's.
        name: "eval 10", or "train 7" of a step; the seeds follow from it.
        greedy_sample: the number of each prompt's rollout that is greedy; None if none is.

    Attributes:
        drawn: how often the stage has drawn each prompt.
        kept: the finished groups of its batch.
        sampled: set while the engines sample nothing for the stage; None if no caller needs it.
    """

    def __init__(self, args: Arguments, name: str, greedy_sample: int | None = None) -> None:
        self.args, self.name = args, name
        self._greedy_sample = greedy_sample
        self.drawn: Counter[str] = Counter()
        self.kept: list[list[Sample]] = []
        self.sampled: threading.Event | None = None

    def seed_params(self, params: "SamplingParams", prompt: str) -> "SamplingParams":
        """Return the sampling parameters of a prompt's next draw, with a seed from run, stage and prompt.

        A prompt that a stage draws twice gets other rollouts the second time. With several environments, the parameters
        name the prompt's.
        """
        self.drawn[prompt] += 1
        mine = copy(params)
        mine.seed = self.get_seed(prompt)
        if name := environments_by_prompt(self.args).get(prompt):
            mine = mark(mine, **{KEY: name})
        return mine if self._greedy_sample is None else mark(mine, **{_GREEDY: self._greedy_sample})

    def get_seed(self, prompt: str) -> int:
        """Return the seed of the prompt's latest draw; its rollouts use this seed, the next one, and so on."""
        text = f"{self.args.seed} {self.name} {self.drawn[prompt]} {prompt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")  # 8 could overflow in later turns

    def add(self, group: "list[Sample]") -> None:
        """Add a finished group to the batch."""
        self.kept.append(group)

    def list_rollouts(self) -> "list[Sample]":
        """Return the rollouts of the batch in the order in which their prompts were drawn.

        They arrive in the order in which engines finish, which would otherwise decide micro-batches and optimizer
        steps.
        """
        place = self.rank_groups()
        return [rollout for group in sorted(self.kept, key=place) for rollout in group]

    def rank_groups(self) -> "Callable[[list[Sample]], int]":
        """Return what gives the place of a group's prompt in the order of the draws."""
        places = {prompt: place for place, prompt in enumerate(self.drawn)}
        return lambda group: places.get(group[0].prompts[0], -1)


def count_greedy(temperature: float) -> int:
    """Return how many greedy answers an evaluation draws beside a problem's samples: none if these are greedy."""
    return int(temperature > 0)


def mark(params: "SamplingParams", **extra: Any) -> "SamplingParams":
    """Return sampling parameters with more ``extra_args``."""
    mine = copy(params)
    mine.extra_args = {**(params.extra_args or {}), **extra}
    return mine


def mark_recorded(params: "SamplingParams") -> "SamplingParams":
    """Return the parameters of a prompt for whose rollouts the engine records the chosen experts."""
    return mark(params, **{ROLLOUT: uuid.uuid4().hex})


def read_name(params: "SamplingParams") -> str | None:
    """Return the name of a recorded prompt or rollout; None if it is not recorded."""
    return (params.extra_args or {}).get(ROLLOUT)


def for_sample(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return the parameters of one rollout of a prompt, the first of which is 0, with its own seed and name."""
    mine, name = copy(params), read_name(params)
    if mine.seed is not None:
        mine.seed += number
    if (params.extra_args or {}).get(_GREEDY) == number:
        mine.top_p, mine.top_k = 1.0, 1  # one candidate leaves top_p nothing to cut
    return mine if name is None else mark(mine, **{ROLLOUT: f"{name}-{number}"})
