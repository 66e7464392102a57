"""What tells the rollouts of a prompt apart, in their sampling parameters: seed, greedy answer, and recorded name.

An evaluation draws a greedy answer beside the samples of each problem. Training makes answers more likely that were
already the likeliest, which raises the exact match of samples but not that of greedy answers. The two together tell
this sharpening from learning. The greedy answer is one more sample of the prompt, so that the engines decode it
together with the others. It is drawn by `top_k=1`, not at temperature 0: beside a request at temperature 0, vLLM on a
CPU draws all others without their seeds. Of equally likely tokens, one is drawn.
"""

import uuid
from copy import copy
from typing import TYPE_CHECKING, Any

from grpo.stack.upstream import ROLLOUT

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

_GREEDY = "greedy"  # in a request's extra_args: the number of the sample that is greedy


def count_greedy(temperature: float) -> int:
    """Return how many greedy answers an evaluation draws beside a problem's samples: none if these are greedy."""
    return int(temperature > 0)


def mark(params: "SamplingParams", **extra: Any) -> "SamplingParams":
    """Return sampling parameters with more ``extra_args``."""
    mine = copy(params)
    mine.extra_args = {**(params.extra_args or {}), **extra}
    return mine


def mark_greedy(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return the parameters of a prompt whose sample `number` is greedy."""
    return mark(params, **{_GREEDY: number})


def mark_recorded(params: "SamplingParams") -> "SamplingParams":
    """Return the parameters of a prompt for whose rollouts the engine records the chosen experts."""
    return mark(params, **{ROLLOUT: uuid.uuid4().hex})


def read_name(params: "SamplingParams") -> str | None:
    """Return the name of a recorded prompt or rollout; None if it is not recorded."""
    return (params.extra_args or {}).get(ROLLOUT)


def for_sample(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return the parameters of one rollout of a prompt, with its own seed and name.

    Args:
        params: of the prompt; not modified.
        number: 0 for the first rollout.
    """
    mine, name = copy(params), read_name(params)
    if mine.seed is not None:
        mine.seed += number
    if (params.extra_args or {}).get(_GREEDY) == number:
        mine.top_p, mine.top_k = 1.0, 1
    return mine if name is None else mark(mine, **{ROLLOUT: f"{name}-{number}"})
