"""One response under a thinking budget, from any engine that streams, in training or in an evaluation."""

import hashlib
import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo.rollout.invariant import EngineAccount
from grpo.rollout.thinking import Budget, Delimiter, Gate
from grpo.rollout.trajectory import Origin, Trajectory
from grpo.stack.upstream.engine import Streams

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams


@dataclass
class Rollout:
    """One response.

    Attributes:
        trajectory: all its tokens.
        thought: sampled tokens up to the end of the thinking, including a delimiter that the model sampled.
        is_closed: whether the thinking ended, naturally or by force.
        is_truncated: whether the answer was cut.
        delimiter_log_prob: sum over the forced tokens, in nats; NaN if none was forced or the engine cannot say.
        parts: what the engine returned in each call, one or two.
    """

    trajectory: Trajectory = field(default_factory=Trajectory)
    thought: int = 0
    is_closed: bool = False
    is_truncated: bool = False
    delimiter_log_prob: float = math.nan
    parts: "list[Part]" = field(default_factory=list)

    @property
    def account(self) -> EngineAccount:
        """Return the engine's own tokens, separate from ``trajectory``."""
        account = EngineAccount()
        for part in self.parts:
            account.note(part.given, part.tokens, part.log_probs)
        return account

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
            "delimiter_log_prob": self.delimiter_log_prob,
        }


def merge_turn_logs(turns: Sequence[Rollout]) -> dict[str, float]:
    """Return the numbers of a conversation whose turns had budgets, under the names of :meth:`Rollout.logs`.

    Lengths are sums over the turns. ``thinking_truncated`` is 1 if the thinking of any turn was cut,
    ``thinking_closed`` if every turn ended its own in time.
    """
    each = [turn.logs() for turn in turns]

    def list_known(name: str) -> list[float]:
        return [logs[name] for logs in each if math.isfinite(logs[name])]

    forced, answers = list_known("delimiter_log_prob"), list_known("answer_length")
    return {
        "thinking_truncated": max(list_known("thinking_truncated"), default=math.nan),
        "thinking_closed": min(list_known("thinking_closed"), default=math.nan),
        "thinking_length": sum(list_known("thinking_length")) if each else math.nan,
        "answer_length": sum(answers) if answers else math.nan,
        "answer_truncated": max(list_known("answer_truncated"), default=math.nan),
        "delimiter_log_prob": sum(forced) / len(forced) if forced else math.nan,
    }


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
        params: ``SamplingParams``; ``max_tokens`` is for the whole response. Without ``logprobs`` the delimiter has no
            log-probs either.
        max_length: of prompt and response, in tokens.

    Raises:
        ValueError: if a response has no room, see :meth:`grpo.rollout.thinking.Budget.within`.
    """
    length = len(delimiter.tokens)
    room = max_length - len(prompt)
    budget = budget.within(room if params.max_tokens is None else min(room, params.max_tokens), length)
    watch = delimiter.watch(prompt)
    gate = Gate(watch, budget)
    rollout = Rollout()
    rollout.trajectory.append(prompt, Origin.PROMPT)
    is_over = False
    if gate.limit > 0:
        most = gate.limit if watch.closed else budget.thinking + budget.answer
        part = await _call(llm, rollout.trajectory.tokens, _change_params(params, max_tokens=most), gate.take_token)
        rollout.parts.append(part)
        rollout.trajectory.append(part.tokens, Origin.SAMPLED, part.log_probs)
        is_over = part.is_over
    rollout.thought = gate.thought
    if not watch.closed and not is_over:
        await _answer(llm, rollout, params, watch.rest(), budget, length)
    else:
        rollout.is_closed, rollout.is_truncated = watch.closed, not is_over
    return rollout


async def _answer(
    llm: Streams, rollout: Rollout, params: "SamplingParams", forced: list[int], budget: Budget, length: int
) -> None:
    """End the thinking of a rollout by force, and sample its answer."""
    made = rollout.trajectory
    sampled = made.count(Origin.SAMPLED)
    made.append(forced, Origin.FORCED)
    second = _change_params(
        params,
        max_tokens=budget.left_for_answer(length, len(forced)),
        min_tokens=max(0, params.min_tokens - sampled),
        seed=None if params.seed is None else answer_seed(params.seed),
        # The engine computes no log-probs for cached tokens; the forced delimiter is new and gets them.
        prompt_logprobs=None if params.logprobs is None else 0,
        skip_reading_prefix_cache=False,
    )
    part = await _call(llm, made.tokens, second)
    rollout.parts.append(part)
    rollout.delimiter_log_prob = _log_prob_of_end(part.prompt, forced, len(made.tokens))
    made.append(part.tokens, Origin.SAMPLED, part.log_probs)
    rollout.is_closed, rollout.is_truncated = True, not part.is_over


def answer_seed(seed: int) -> int:
    """Return the seed of a rollout's second call, whose random stream no first call has.

    The first call's seed would draw the answer with the random numbers that drew the thinking. The next seeds belong
    to the prompt's other rollouts.
    """
    return int.from_bytes(hashlib.sha256(f"answer {seed}".encode()).digest()[:7], "big")


@dataclass
class Part:
    """The result of one call.

    Attributes:
        log_probs: of the tokens; NaN if not requested.
        is_over: whether the model ended the sequence; otherwise a limit did.
        prompt: the call's first output, which holds the prompt.
    """

    tokens: list[int]
    log_probs: list[float]
    is_over: bool = False
    prompt: "RequestOutput | None" = None

    @property
    def given(self) -> list[int]:
        """Return the prompt as the engine had it."""
        return [] if self.prompt is None else list(self.prompt.prompt_token_ids or ())


async def _call(
    llm: Streams, prompt: Sequence[int], params: "SamplingParams", goes_on: Callable[[int], bool] = lambda token: True
) -> Part:
    """Make one call, and end it after the first token for which `goes_on` is false; later tokens are dropped."""
    part = Part([], [])
    stream = llm.generate({"prompt_token_ids": list(prompt)}, params, request_id=uuid.uuid4().hex)
    async with aclosing(stream) as outputs:  # closing an unfinished stream aborts the request
        async for output in outputs:
            part.prompt = part.prompt or output
            new = output.outputs[0]
            for index, token in enumerate(new.token_ids):
                part.tokens.append(token)
                part.log_probs.append(math.nan if new.logprobs is None else new.logprobs[index][token].logprob)
                is_last = output.finished and index == len(new.token_ids) - 1
                if not goes_on(token) and not is_last:
                    return part
            if output.finished:
                part.is_over = new.finish_reason != "length"
    return part


def _change_params(params: "SamplingParams", **changes: Any) -> "SamplingParams":
    """Return sampling parameters for a streamed call: new tokens as they arrive, without text."""
    from vllm.sampling_params import RequestOutputKind

    mine = copy(params)
    for name, value in {"output_kind": RequestOutputKind.DELTA, "detokenize": False, **changes}.items():
        setattr(mine, name, value)
    return mine


def _log_prob_of_end(output: "RequestOutput | None", tokens: Sequence[int], end: int) -> float:
    """Return the log-prob of the tokens before position `end` of a call's prompt; NaN if the cache held one of them.

    The engine computes log-probs of a prompt without temperature.
    """
    first = end - len(tokens)
    if output is None or output.prompt_logprobs is None or first <= (output.num_cached_tokens or 0):
        return math.nan
    choices = output.prompt_logprobs[first:end]
    return sum(((known or {})[token].logprob for known, token in zip(choices, tokens, strict=True)), start=0.0)
