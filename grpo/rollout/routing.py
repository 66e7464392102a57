"""The experts that the engine chose for the tokens of each rollout, from the engine's workers to its response.

All calls of a rollout carry its name: turns, and the answer after a cut thought. A position's choice depends only on
the tokens up to it, so a call's choices hold for every rollout that begins with the same tokens. The first call that
computed a position counts: a token was sampled from it, and later calls only read the cache or compute it again.
Imports no DeepSpeed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo.rollout.sample_params import for_sample, read_name
from grpo.stack.upstream import Engine

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

KEY = "routing"  # of a response

Call = tuple[np.ndarray, np.ndarray]


async def take(engine: Engine, params: "SamplingParams", samples: int) -> dict[str, Any] | None:
    """Take the recorded choices of a prompt's rollouts from the workers, which forget them at a sync.

    Returns:
        as :meth:`grpo.lora.router_capture.RecordingWorker.take_routing`; None if the prompt has no name, or if the
        workers cannot record.
    """
    if read_name(params) is None:
        return None
    names = [read_name(for_sample(params, number)) for number in range(samples)]
    answers = await engine.llm.collective_rpc("take_routing", args=(names,))
    return next((answer for answer in answers if answer is not None), None)


def add_routing(responses: list[dict[str, Any]], recorded: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Add the choices of :func:`take` to the responses to a prompt and to their branches.

    Args:
        responses: one for each rollout, in order.
    """
    if recorded is None:
        return responses
    for response, calls in zip(responses, recorded["calls"], strict=True):
        made = [_call(call, recorded["shape"]) for call in calls]
        for sample in (response, *response.get("branches", ())):
            sample[KEY] = assemble_choices(sample["observation_tokens"], made, recorded["shape"])
    return responses


def _call(call: Sequence[bytes], shape: Sequence[int]) -> Call:
    tokens, choices = call
    return np.frombuffer(tokens, np.int32), np.frombuffer(choices, np.uint8).reshape(-1, *shape)


def assemble_choices(tokens: Sequence[int], calls: Sequence[Call], shape: Sequence[int]) -> np.ndarray:
    """Return the choices for the tokens of a rollout, uint8 ``[S, layers, k]``; 0 where no call computed them.

    Args:
        calls: the tokens that each call was fed, and the choices for them.
        shape: layers, and experts a token.
    """
    wanted = np.asarray(tokens)
    routing, known = np.zeros((len(wanted), *shape), np.uint8), np.zeros(len(wanted), bool)
    for fed, choices in calls:
        common = min(len(fed), len(wanted))
        differing = np.flatnonzero(fed[:common] != wanted[:common])
        end = differing[0] if len(differing) else common
        new = ~known[:end]
        routing[:end][new] = choices[:end][new]
        known[:end] = True
    return routing
