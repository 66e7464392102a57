"""The greedy answer that an evaluation draws beside the samples of each problem: every token is the likeliest one.

Training makes answers more likely that were already the likeliest, which raises the exact match of samples but not that
of greedy answers. The two together tell this sharpening from learning. The greedy answer is one more sample of the
prompt, so that the engines decode it together with the others. It is drawn by `top_k=1`, not at temperature 0: beside a
request at temperature 0, vLLM on a CPU draws all others without their seeds. Of equally likely tokens, one is drawn.
"""

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

KEY = "greedy"  # in a request's extra_args: the number of the sample that is greedy


def answers(temperature: float) -> int:
    """Return how many greedy answers an evaluation draws beside a problem's samples: none if these are greedy."""
    return int(temperature > 0)


def mark_greedy(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return sampling parameters of a prompt whose sample `number` is greedy."""
    mine = copy(params)
    mine.extra_args = {**(params.extra_args or {}), KEY: number}
    return mine


def make_sample_params(params: "SamplingParams", number: int) -> "SamplingParams":
    """Return the sampling parameters of one sample of a prompt, which may be the greedy one."""
    if (params.extra_args or {}).get(KEY) != number:
        return params
    mine = copy(params)
    mine.top_p, mine.top_k = 1.0, 1
    return mine
