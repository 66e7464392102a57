"""Cuts of a scripted engine, at any moment; tests/stack/test_partial_rollouts.py cuts vLLM's."""

import asyncio
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from grpo.rollout import continued
from grpo.rollout.continued import ContinuedLLM

PROMPT, LONGEST, SEED = [7, 8, 9], 12, 5
NAME = continued.name_rollout(SEED, 0)
KINDS = [RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA]


class Engine:
    """Draws a token a moment, by its seed; a request is known to it only a moment after the call.

    Attributes:
        requests: prompt and parameters of each.
        running: the names of those that may still be cut.
    """

    def __init__(self):
        self.requests, self.running, self.cut = [], set(), set()

    async def generate(self, prompt, params, request_id):
        await asyncio.sleep(0)
        self.requests.append((prompt["prompt_token_ids"], params))
        self.running.add(request_id)
        draws, made, reason = random.Random(params.seed), [], None
        scores = None if params.prompt_logprobs is None else [None, {8: Logprob(-0.8)}, {-1: Logprob(0.0)}]
        while reason is None:
            await asyncio.sleep(0)
            if request_id in self.cut:
                reason, new = "abort", []
            else:
                new = [draws.randrange(100)]
                made += new
                reason = "length" if len(made) == params.max_tokens else None
            is_streamed = params.output_kind == RequestOutputKind.DELTA
            if is_streamed or reason:
                tokens = new if is_streamed else made
                yield RequestOutput(
                    request_id, None, prompt["prompt_token_ids"], scores, finished=reason is not None,
                    outputs=[
                        CompletionOutput(
                            index=0, text="", token_ids=tokens, cumulative_logprob=None, finish_reason=reason,
                            logprobs=[{token: Logprob(-token / 100)} for token in tokens],
                        )
                    ],
                )  # fmt: skip
                scores = None
        self.running.discard(request_id)

    async def abort(self, names):
        self.cut |= self.running & set(names)


def make_llm(engine: Any) -> ContinuedLLM:
    return ContinuedLLM(engine)


def make_params(kind=RequestOutputKind.FINAL_ONLY, **changes) -> SamplingParams:
    params = SamplingParams(max_tokens=LONGEST, min_tokens=4, seed=SEED, logprobs=0, output_kind=kind, **changes)
    return continued.make_sample_params(continued.make_continuable(params))


async def collect_outputs(llm, params) -> list[RequestOutput]:
    return [output async for output in llm.generate({"prompt_token_ids": PROMPT}, params, request_id="mine")]


def list_sampled(outputs) -> tuple[list[int], list[float]]:
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    choices = [choice for output in outputs for choice in output.outputs[0].logprobs]
    return tokens, [choice[token].logprob for token, choice in zip(tokens, choices, strict=True)]


async def cut_outputs(engine, llm, moments, params) -> list[RequestOutput]:
    """Sample, and cut after each of these numbers of moments."""
    task = asyncio.create_task(collect_outputs(llm, params))
    for policy, moment in enumerate(moments, 1):
        for _ in range(moment):
            await asyncio.sleep(0)
        await llm.cut()
        assert not engine.running, "the adapter would be replaced while a request runs"
        llm.go_on(policy, [NAME], {})
    return await task


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 9), max_size=4), st.sampled_from([RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA])
)
def test_a_rollout_that_is_cut_has_every_token_once(moments, kind):
    engine = Engine()
    llm = make_llm(engine)
    outputs = asyncio.run(cut_outputs(engine, llm, moments, make_params(kind)))
    tokens, log_probs = list_sampled(outputs)
    assert len(tokens) == LONGEST and log_probs == [-token / 100 for token in tokens]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "length" and outputs[0].prompt_token_ids == PROMPT
    policies = llm.policies(NAME, PROMPT + tokens).tolist()
    assert policies[:3] == [-1] * 3 and policies[3:] == sorted(policies[3:]) and policies[3] >= 0
    for prompt, params in engine.requests:
        done = len(prompt) - len(PROMPT)
        assert prompt == PROMPT + tokens[:done]
        assert params.max_tokens == LONGEST - done and params.min_tokens == max(0, 4 - done)
        assert (params.seed == SEED) == (done == 0), "the random numbers of the first tokens were drawn again"


def test_requests_without_a_name_are_vllms_own():
    engine = Engine()
    llm = make_llm(engine)
    plain = SamplingParams(max_tokens=3, seed=SEED, logprobs=0)

    async def generate_while_cut():
        await llm.cut()
        return await collect_outputs(llm, plain)

    assert asyncio.run(generate_while_cut())[-1].finished
    assert engine.requests == [(PROMPT, plain)] and llm.policies(NAME, PROMPT).tolist() == [-1] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_another_engine_continues_from_a_checkpoint(kind):
    """With what the engine said of the prompt, which it says once."""
    params = make_params(kind, prompt_logprobs=0)

    async def run():
        first, second = make_llm(Engine()), make_llm(Engine())
        task = asyncio.create_task(collect_outputs(first, params))
        for _ in range(6):
            await asyncio.sleep(0)
        await first.cut()
        saved = first.calls([NAME, "of another engine"])
        assert set(saved) == {NAME} and 0 < len(saved[NAME][0]["tokens"]) < LONGEST
        assert all(not isinstance(value, list) for value in saved[NAME][0].values()), "tensors are saved faster"
        for llm, known in ((first, {}), (second, saved)):
            llm.go_on(3, [NAME], known)
        outputs = [await task, await collect_outputs(second, params)]
        policies = [llm.policies(NAME, PROMPT + list_sampled(outputs[0])[0]).tolist() for llm in (first, second)]
        return outputs, policies, second.calls([NAME])

    (whole, again), policies, ended = asyncio.run(run())
    assert list_sampled(again) == list_sampled(whole) and policies[0] == policies[1]
    assert whole[0].prompt_logprobs == again[0].prompt_logprobs == [None, {8: Logprob(-0.8)}, None]
    assert ended[NAME][0]["reason"] == "length" and ended[NAME][0]["tokens"].dtype == torch.int64


def test_what_is_over_is_forgotten():
    llm = make_llm(Engine())
    asyncio.run(collect_outputs(llm, make_params()))
    assert llm.calls([NAME])
    llm.go_on(1, [], {})
    assert not llm.calls([NAME])


def test_a_later_call_knows_better_whose_a_token_is():
    """A budget ends a call, forces tokens, and calls again; by chance it forces what the first call had sampled."""
    llm = make_llm(Engine())
    values = {"seed": SEED, "log_probs": [0.0] * 3, "prompt_log_probs": [], "cached": 0, "reason": None}
    first = {"prompt": [7], "tokens": [1, 2, 3], "policies": [0, 0, 0]}
    second = {"prompt": [7, 1, 2], "tokens": [3, 4, 5], "policies": [1, 1, 1]}
    llm.go_on(1, [], {NAME: [values | first, values | second]})
    assert llm.policies(NAME, [7, 1, 2, 3, 4, 6]).tolist() == [-1, 0, 0, 1, 1, -1]
