"""Samples drawn concurrently from an offline engine, against the asynchronous calls of training."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from eval.engine import LoopedLLM
from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.thinking import Budget
from tests.grpo.rollout.replayed_engine import (
    CONTEXT,
    HARMONY,
    PROMPT,
    STREAM,
    Engine,
    encode_text,
    make_log_prob,
)


class LLMEngine:
    """Replays one stream for each seed, some requests and tokens a step, and rejects invalid requests.

    Attributes:
        calls: how many requests there were.
        running: those that have not ended.
    """

    def __init__(self, streams: dict[int, list[int]], slots: int = 3, seed: int = 0) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=slots))
        self.calls = 0
        self._streams, self._places, self._chance = streams, slots, random.Random(seed)
        self.running: dict[str, SimpleNamespace] = {}

    def add_request(self, request_id, prompt, params):
        assert request_id not in self.running
        tokens = list(prompt["prompt_token_ids"])
        replayed = Engine([self._streams[params.seed]])
        sampled, reason = replayed.make_whole_output(0, params.max_tokens)
        self.running[request_id] = SimpleNamespace(
            prompt=tokens, params=params, tokens=sampled, reason=reason, position=0
        )
        self.calls += 1

    def abort_request(self, request_ids):
        for one in request_ids:
            self.running.pop(one, None)

    def step(self):
        assert self.running, "a step of nothing"
        outputs = [self._make_output(one, self.running[one]) for one in list(self.running)[: self._places]]
        return [output for output in outputs if output]

    def _make_output(self, request_id, one):
        begin, one.position = one.position, min(len(one.tokens), one.position + self._chance.randint(1, 3))
        is_over = one.position == len(one.tokens)
        if is_over:
            del self.running[request_id]
        if one.params.output_kind is RequestOutputKind.FINAL_ONLY:
            begin = 0
            if not is_over:
                return None
        some = one.tokens[begin : one.position]
        scores = None if one.params.logprobs is None else [{token: make_log_prob(token)} for token in some]
        reason = one.reason if is_over else None
        part = CompletionOutput(0, "", some, None, logprobs=scores, finish_reason=reason)
        return RequestOutput(request_id, None, one.prompt, None, [part], is_over, num_cached_tokens=99)


PAIRS = st.lists(st.tuples(STREAM, STREAM), min_size=1, max_size=6)


@settings(deadline=None)
@given(PAIRS, st.integers(0, 24), st.integers(2, 12), st.integers(0, 9))
def test_concurrent_samples_equal_training_rollouts(pairs, thinking, answer, seed):
    budget = Budget(thinking, answer)
    asked = [SamplingParams(max_tokens=CONTEXT, min_tokens=1, seed=number, logprobs=0) for number in range(len(pairs))]
    streams = {number: first for number, (first, _) in enumerate(pairs)}
    streams |= {answer_seed(number): second for number, (_, second) in enumerate(pairs)}
    offline = LLMEngine(streams, seed=seed)

    async def draw():
        llm = LoopedLLM(offline)
        return await asyncio.gather(
            *(budgeted_response(llm, PROMPT, params, HARMONY, budget, CONTEXT) for params in asked)
        )

    calls = 0
    for rollout, params_, pair in zip(asyncio.run(draw()), asked, pairs, strict=True):
        alone = Engine(list(pair if thinking else pair[1:]))
        expected = asyncio.run(budgeted_response(alone, PROMPT, params_, HARMONY, budget, CONTEXT))
        assert rollout.trajectory == expected.trajectory
        assert rollout.logs() == pytest.approx(expected.logs(), nan_ok=True)
        calls += len(alone.calls)
    assert offline.calls == calls and not offline.running, "a call that was given up is still there"


def test_an_engine_that_fails_ends_every_call_with_its_error():
    class Broken(LLMEngine):
        def step(self):
            raise RuntimeError("out of memory")

    async def generate_both() -> list:
        looped = LoopedLLM(Broken(dict.fromkeys(range(2), encode_text("7<|return|>"))))

        async def generate_one(number: int) -> None:
            params = SamplingParams(max_tokens=40, seed=number)
            async for _ in looped.generate({"prompt_token_ids": PROMPT}, params, request_id=str(number)):
                raise AssertionError("it has no output")

        return await asyncio.gather(generate_one(0), generate_one(1), return_exceptions=True)

    errors = asyncio.run(generate_both())
    assert [(type(error), str(error)) for error in errors] == [(RuntimeError, "out of memory")] * 2
