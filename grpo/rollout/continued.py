"""Rollouts that outlive the policy that began them: a sync cuts their requests, and the next policy continues them.

The cut lies below ``generate``, so the code that makes rollouts does not notice it. A continued request begins with the
prompt and the tokens sampled so far. Each token keeps the log-prob of the policy that sampled it, and that policy's
number.
Imports no DeepSpeed.
"""

import asyncio
import hashlib
import math
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from grpo.stack.upstream.engine import AsyncLLM, Engine

if TYPE_CHECKING:
    from vllm.inputs import TokensPrompt
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams

ROLLOUT = "continued_as"  # in a request's extra_args: the rollout whose calls survive a cut
# Of a response: the policy of each token, -1 where none sampled it; the seed of its prompt; its limit of new tokens
POLICIES, GROUP, LIMIT = "policies", "group", "limit"
_LOOK_SECONDS = 0.01


@dataclass
class Call:
    """One call of a rollout, over all its requests.

    Attributes:
        prompt: token ids, as the caller gave them.
        seed: the caller's.
        tokens, log_probs, policies: of each sampled token.
        prompt_log_probs: of each token of the prompt, NaN where the engine gave none; [] if none were requested.
        cached: tokens of the prompt that the engine had in its cache.
        reason: why the call ended; None while it has not.
    """

    prompt: list[int]
    seed: int | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    policies: list[int] = field(default_factory=list)
    prompt_log_probs: list[float] = field(default_factory=list)
    cached: int = 0
    reason: str | None = None

    def note(self, output: "RequestOutput", policy: int) -> None:
        """Add what a request returned."""
        new = output.outputs[0]
        for index, token in enumerate(new.token_ids):
            self.log_probs.append(math.nan if new.logprobs is None else new.logprobs[index][token].logprob)
            self.tokens.append(token)
            self.policies.append(policy)
        if not self.prompt_log_probs and output.prompt_logprobs:
            self.prompt_log_probs = [
                choices[token].logprob if choices and token in choices else math.nan  # none of a cached token
                for token, choices in zip(self.prompt, output.prompt_logprobs, strict=True)
            ]
            self.cached = output.num_cached_tokens or 0
        if output.finished and new.finish_reason != "abort":
            self.reason = new.finish_reason

    def rest(self, params: "SamplingParams") -> "SamplingParams":
        """Return the sampling parameters of the request that continues the call; those of the call at its start."""
        done = len(self.tokens)
        if not done:
            return params
        mine = copy(params)
        mine.max_tokens = None if params.max_tokens is None else params.max_tokens - done
        mine.min_tokens = max(0, params.min_tokens - done)
        mine.seed = None if params.seed is None else continued_seed(params.seed, done)
        mine.prompt_logprobs = None
        return mine

    def output(self, request_id: str, start: int, has_log_probs: bool) -> "RequestOutput":
        """Return the tokens from `start` on, as vLLM reports them."""
        from vllm.logprobs import Logprob
        from vllm.outputs import CompletionOutput, RequestOutput

        def choices(tokens: Sequence[int], log_probs: Sequence[float]) -> list[Any]:
            pairs = zip(tokens, log_probs, strict=True)
            return [None if math.isnan(value) else {token: Logprob(value)} for token, value in pairs]

        tokens = self.tokens[start:]
        completion = CompletionOutput(
            index=0,
            text="",
            token_ids=tokens,
            cumulative_logprob=None,
            logprobs=choices(tokens, self.log_probs[start:]) if has_log_probs else None,
            finish_reason=self.reason,
        )
        return RequestOutput(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=self.prompt,
            prompt_logprobs=choices(self.prompt, self.prompt_log_probs) if self.prompt_log_probs else None,
            outputs=[completion],
            finished=self.reason is not None,
            num_cached_tokens=self.cached,
        )

    def plain(self) -> dict[str, Any]:
        """Return the call as tensors and plain values."""
        kinds = {int: torch.int64, float: torch.float64}
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: torch.tensor(value, dtype=kinds[float if "log_probs" in name else int])
            if isinstance(value, list)
            else value
            for name, value in values.items()
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Call":
        """Return the call of :meth:`plain`."""
        plain: dict[str, Any] = {
            name: value.tolist() if torch.is_tensor(value) else value for name, value in values.items()
        }
        return cls(**plain)


def continued_seed(seed: int, done: int) -> int:
    """Return the seed of a request that continues a call after `done` tokens.

    The call's own seed would draw the next tokens with the random numbers that drew the first ones.
    """
    return int.from_bytes(hashlib.sha256(f"continued {done} {seed}".encode()).digest()[:7], "big")


class ContinuedLLM:
    """vLLM's asynchronous engine. Requests that name their rollout can be cut; all others are vLLM's own.

    Attributes:
        policy: the number of the policy that the workers hold.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._calls: dict[str, list[Call]] = {}
        self._running: set[str] = set()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self.policy = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompt: Any, params: "SamplingParams", request_id: str) -> Any:
        """Answer one prompt, as vLLM's ``generate``."""
        rollout = (params.extra_args or {}).get(ROLLOUT)
        if rollout is None:
            return self._llm.generate(prompt, params, request_id=request_id)
        return self._continue_call(
            self._call(rollout, list(prompt["prompt_token_ids"]), params.seed), params, request_id
        )

    def _call(self, rollout: str, prompt: list[int], seed: int | None) -> Call:
        """Return the call that a checkpoint held, or a new one."""
        calls = self._calls.setdefault(rollout, [])
        for call in calls:
            if call.prompt == prompt and call.seed == seed:
                return call
        calls.append(Call(prompt, seed))
        return calls[-1]

    async def _continue_call(
        self, call: Call, params: "SamplingParams", request_id: str
    ) -> "AsyncIterator[RequestOutput]":
        from vllm.sampling_params import RequestOutputKind

        is_streamed, has_log_probs = params.output_kind == RequestOutputKind.DELTA, params.logprobs is not None
        reported = 0
        if is_streamed and call.tokens:
            reported = len(call.tokens)
            yield call.output(request_id, 0, has_log_probs)
        while call.reason is None:
            await self._may_run.wait()
            name, policy = uuid.uuid4().hex, self.policy
            request: TokensPrompt = {"prompt_token_ids": call.prompt + call.tokens}
            self._running.add(name)
            try:
                async with aclosing(self._llm.generate(request, call.rest(params), request_id=name)) as outputs:
                    async for output in outputs:
                        call.note(output, policy)
                        if is_streamed and (len(call.tokens) > reported or call.reason is not None):
                            start, reported = reported, len(call.tokens)
                            yield call.output(request_id, start, has_log_probs)
            finally:
                self._running.discard(name)
        if not is_streamed:
            yield call.output(request_id, 0, has_log_probs)

    async def cut(self) -> None:
        """End the requests that can be cut; they keep their tokens. Their calls wait for :meth:`go_on`."""
        self._may_run.clear()
        while self._running:  # a request that was about to start is known to vLLM only later
            await self._llm.abort(list(self._running))
            await asyncio.sleep(_LOOK_SECONDS)

    def go_on(self, policy: int, rollouts: Sequence[str], known: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Continue what was cut.

        Args:
            policy: the number of the policy that the workers hold.
            rollouts: those that are not over; the others are forgotten.
            known: the calls of rollouts that a checkpoint held, see :meth:`calls`.
        """
        self.policy = policy
        kept = {rollout: self._calls[rollout] for rollout in rollouts if rollout in self._calls}
        self._calls = {**kept, **{rollout: [Call.of(call) for call in calls] for rollout, calls in known.items()}}
        self._may_run.set()

    def calls(self, rollouts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the calls of those rollouts that this engine has, as plain values."""
        return {name: [call.plain() for call in self._calls[name]] for name in rollouts if name in self._calls}

    def policies(self, rollout: str, tokens: Sequence[int]) -> np.ndarray:
        """Return the policy of each token of a rollout, int64 ``[tokens]``; -1 where none sampled it."""
        policies = np.full(len(tokens), -1, dtype=np.int64)
        for call in self._calls.get(rollout, []):
            start = len(call.prompt)
            if list(tokens[:start]) == call.prompt:
                for at, (token, policy) in enumerate(zip(call.tokens, call.policies, strict=True), start):
                    if at >= len(tokens) or tokens[at] != token:
                        break
                    policies[at] = policy
        return policies


def make_continuable(params: "SamplingParams") -> "SamplingParams":
    """Return the sampling parameters of a prompt whose rollouts may be cut; their names follow from their seeds."""
    return _name_params(params, "")


def make_sample_params(params: "SamplingParams") -> "SamplingParams":
    """Return the sampling parameters of one rollout, which has its own seed."""
    is_continuable = ROLLOUT in (params.extra_args or {})
    return _name_params(params, name_rollout(params.seed, 0)) if is_continuable else params


def name_rollout(seed: int | None, number: int) -> str:
    """Return the name of a prompt's rollout: its seed, which no other rollout of the run has."""
    assert seed is not None
    return str(seed + number)


def _name_params(params: "SamplingParams", name: str) -> "SamplingParams":
    mine = copy(params)
    mine.extra_args = {**(params.extra_args or {}), ROLLOUT: name}
    return mine


def add_policies(engine: Engine, params: "SamplingParams", responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the policy of each token to the responses to a prompt, if they could be cut.

    Args:
        params: of the prompt.
        responses: one for each rollout, in order.
    """
    if ROLLOUT in (params.extra_args or {}):
        llm = cast(ContinuedLLM, engine.llm)
        for number, response in enumerate(responses):
            policies = llm.policies(name_rollout(params.seed, number), response["observation_tokens"])
            response |= {POLICIES: policies, GROUP: params.seed, LIMIT: params.max_tokens}
    return responses
