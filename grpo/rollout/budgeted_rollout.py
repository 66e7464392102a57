"""One response under a thinking budget, from any engine that streams, in training or in an evaluation."""

import hashlib
import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.rollout.thinking import Budget, Delimiter
from grpo.rollout.trajectory import Call, Origin, Trajectory
from grpo.stack.upstream import Streams

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


@dataclass
class Rollout:
    """One response.

    Attributes:
        trajectory: all its tokens.
        thought: sampled tokens up to the end of the thinking, including a delimiter that the model sampled.
        is_closed: whether the thinking ended, naturally or by force.
        is_truncated: whether the answer was cut.
    """

    trajectory: Trajectory
    thought: int = 0
    is_closed: bool = False
    is_truncated: bool = False

    @property
    def response(self) -> list[int]:
        """Return the tokens after the prompt, including forced ones."""
        return self.trajectory.tokens[self.trajectory.count(Origin.PROMPT) :]

    def logs(self) -> dict[str, float]:
        """Return the rollout's numbers, see :mod:`grpo.metrics.metric_schema`; NaN for a missing one."""
        is_forced = self.trajectory.count(Origin.FORCED) > 0
        answer = self.trajectory.count(Origin.SAMPLED) - self.thought
        return {
            "prompt_length": float(self.trajectory.count(Origin.PROMPT)),
            "thinking_truncated": float(is_forced),
            "thinking_closed": float(self.is_closed and not is_forced),
            "thinking_length": float(self.thought),
            "answer_length": float(answer) if self.is_closed else math.nan,
            "answer_truncated": float(self.is_truncated),
        }


_MERGES: dict[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(("thinking_truncated", "answer_truncated"), max),
    "thinking_closed": min,
    **dict.fromkeys(("thinking_length", "answer_length"), sum),
}


def merge_turn_logs(turns: Sequence[Rollout]) -> dict[str, float]:
    """Return the numbers of a conversation whose turns had budgets, under the names of :meth:`Rollout.logs`.

    Lengths are summed over the turns. ``thinking_truncated`` is 1 if the thinking of any turn was cut,
    ``thinking_closed`` if every turn ended its own in time.
    """
    each, merged = [turn.logs() for turn in turns], {}
    for name, merge in _MERGES.items():
        known = [logs[name] for logs in each if math.isfinite(logs[name])]
        merged[name] = merge(known) if known else math.nan
    return merged


async def budgeted_response(
    llm: Streams,
    prompt: Sequence[int],
    params: "SamplingParams",
    delimiter: Delimiter,
    budget: Budget,
    max_length: int,
) -> Rollout:
    """Sample one response: thinking within its budget, then an answer within its own.

    The first call asks for the whole response and streams. It continues if the thinking ends in time; otherwise it is
    aborted. A budget that is not reached therefore costs nothing and changes no token; a second call would restart the
    random generator. An abort loses at most the tokens of one report (:func:`grpo.rollout.engine.arguments`) and those
    in flight. The second call finds the thinking in the engine's prefix cache, unless a sync came between.

    Args:
        params: ``max_tokens`` is for the whole response.
        max_length: of prompt and response, in tokens.

    Raises:
        UserError: if a response has no room, see :meth:`grpo.rollout.thinking.Budget.within`.
    """
    size, room = len(delimiter.tokens), max_length - len(prompt)
    budget = budget.within(room if params.max_tokens is None else min(room, params.max_tokens), size)
    watch = delimiter.watch(prompt)
    rollout = Rollout(Trajectory())
    rollout.trajectory.append(prompt, Origin.PROMPT)
    limit = budget.answer if watch.closed else budget.thinking
    sampled, is_over = 0, False

    def may_follow(token: int) -> bool:
        nonlocal sampled, limit
        sampled += 1
        if not watch.closed:
            watch.feed(token)
            rollout.thought = sampled
            limit = sampled + budget.answer if watch.closed else limit
        return sampled < limit

    if limit > 0:
        most = limit if watch.closed else budget.thinking + budget.answer
        first = _change_params(params, max_tokens=most)
        call = await _stream(llm, rollout.trajectory.tokens, first, may_follow)
        rollout.trajectory.add(call)
        is_over = call.is_over
    if watch.closed or is_over:
        rollout.is_closed, rollout.is_truncated = watch.closed, not is_over
    else:
        forced = watch.rest()  # may be one token longer than the delimiter, at the answer's cost
        await _answer(llm, rollout, params, forced, budget.answer - max(0, len(forced) - size))
    return rollout


async def _answer(llm: Streams, rollout: Rollout, params: "SamplingParams", forced: list[int], most: int) -> None:
    """End the thinking of a rollout by force, and sample its answer of at most `most` tokens."""
    second = _change_params(
        params,
        max_tokens=most,
        min_tokens=max(0, params.min_tokens - rollout.trajectory.count(Origin.SAMPLED)),
        seed=None if params.seed is None else answer_seed(params.seed),
        skip_reading_prefix_cache=False,  # True by default if the caller wants log-probs of the prompt
    )
    call = await _stream(llm, [*rollout.trajectory.tokens, *forced], second)
    rollout.trajectory.add(call)
    rollout.is_closed, rollout.is_truncated = True, not call.is_over


def answer_seed(seed: int) -> int:
    """Return the seed of a rollout's second call, whose random stream no first call has.

    The first call's seed would draw the answer with the random numbers that drew the thinking. The next seeds belong
    to the prompt's other rollouts.
    """
    return int.from_bytes(hashlib.sha256(f"answer {seed}".encode()).digest()[:7], "big")


async def _stream(
    llm: Streams, prompt: Sequence[int], params: "SamplingParams", may_follow: Callable[[int], bool] = lambda _: True
) -> Call:
    """Make one call, and end it at the first token that no other may follow; later tokens are dropped."""
    call = Call(list(prompt))
    stream = llm.generate({"prompt_token_ids": list(prompt)}, params, request_id=uuid.uuid4().hex)
    async with aclosing(stream) as outputs:  # closing an unfinished stream aborts the request
        async for output in outputs:
            call.given = call.given or list(output.prompt_token_ids or ())  # every report repeats it
            [new] = output.outputs
            end = next((at for at, token in enumerate(new.token_ids, 1) if not may_follow(token)), None)
            call.take(new, end)
            if end is not None and not (output.finished and end == len(new.token_ids)):  # else it ended there by itself
                break
            call.is_over = output.finished and new.finish_reason != "length"
    return call


def _change_params(params: "SamplingParams", **changes: Any) -> "SamplingParams":
    """Return sampling parameters for a streamed call: new tokens as they arrive, without text."""
    from vllm.sampling_params import RequestOutputKind

    mine = copy(params)
    for name, value in {"output_kind": RequestOutputKind.DELTA, "detokenize": False, **changes}.items():
        setattr(mine, name, value)
    return mine
