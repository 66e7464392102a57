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

from eval import evaluate
from eval.engine import LoopedEngine, LoopedLLM
from eval.output import Output
from eval.problems import EvalProblem, derive_seed
from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.engine import ids_only
from grpo.rollout.thinking import Budget
from tests.grpo.environments.scripted import make_params
from tests.grpo.rollout.replayed_engine import (
    ANALYSIS,
    CONTEXT,
    FINAL,
    HARMONY,
    PROMPT,
    STREAM,
    Engine,
    encode_text,
    make_log_prob,
)

PROBLEM = EvalProblem("p", "2+2", "4", "sums")
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 40}


class LLMEngine:
    """Replays one stream for each seed, some requests and tokens a step, and rejects invalid requests.

    Attributes:
        calls: prompt and parameters of each; aborted: how many ended so.
        running: requests that have not ended; most: of these at a time.
    """

    def __init__(self, streams: dict[int, list[int]], slots: int = 3, seed: int = 0) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=slots))
        self.calls: list[tuple[list[int], SamplingParams]] = []
        self.most = self.aborted = 0
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
        self.calls.append((tokens, params))
        self.most = max(self.most, len(self.running))

    def abort_request(self, request_ids):
        self.aborted += sum(self.running.pop(one, None) is not None for one in request_ids)

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
    assert len(offline.calls) == calls and not offline.running, "a call that was given up is still there"


TEXTS = [ANALYSIS + "77" + FINAL + "8<|return|>", "8<|call|>", ANALYSIS + "7" * 50, *["5<|return|>"] * 4]
SEEDS = [derive_seed(0, "p", number) for number in range(len(TEXTS))]


def draw_samples(folder, texts, thinking=None) -> tuple[LLMEngine, list[SimpleNamespace]]:
    """The samples of an evaluation, in their order, whose engine says these texts, and then 9."""
    streams = dict(zip(SEEDS, map(encode_text, texts), strict=False))
    offline = LLMEngine(streams | {answer_seed(seed): encode_text("9<|return|>") for seed in streams})
    chat = SimpleNamespace(record=lambda tokens, reason, logs: {"tokens": tokens, "reason": reason, "logs": logs})
    options = SimpleNamespace(seed=0, **SAMPLING)
    with Output(folder, {}, {}, [PROBLEM], len(texts), [1]) as output:
        llm = SimpleNamespace(llm_engine=offline)
        evaluate._draw(llm, options, chat, {"p": PROMPT}, thinking, None, output)
    return offline, [SimpleNamespace(**output.samples["p", number]) for number in range(len(texts))]


def test_without_a_budget_each_sample_is_one_call_and_all_start_at_once(tmp_path):
    offline, samples = draw_samples(tmp_path, TEXTS)
    assert [sample.tokens for sample in samples] == [encode_text(text)[:40] for text in TEXTS]
    assert [sample.reason for sample in samples] == ["stop", "stop", "length", *["stop"] * 4]
    assert [sample.seed for sample in samples] == SEEDS and all(sample.logs == {} for sample in samples)
    assert offline.most == len(offline.calls) == len(TEXTS) and offline.aborted == 0
    assert {(params.temperature, params.top_p, params.max_tokens) for _, params in offline.calls} == {(0.7, 0.9, 40)}


def test_a_thought_that_is_cut_is_answered_by_a_second_call_at_once(tmp_path):
    offline, samples = draw_samples(tmp_path, TEXTS, (HARMONY, Budget(9, 4)))
    cut = samples[2]
    assert cut.tokens == encode_text(ANALYSIS + "7" * 6 + FINAL + "9<|return|>") and cut.reason == "stop"
    assert cut.logs["thinking_truncated"] == 1 and cut.logs["response_length"] == 9 + 2
    assert offline.most == 3, "a second call waits behind others"
    second = [params.seed not in SEEDS for _, params in offline.calls]
    assert sum(second) == offline.aborted == 2
    assert [params.skip_reading_prefix_cache for _, params in offline.calls] == [not is_second for is_second in second]
    assert all(params.logprobs is params.prompt_logprobs is None for _, params in offline.calls)
    prompts = {params.seed: prompt for prompt, params in offline.calls}
    assert prompts[answer_seed(SEEDS[2])] == PROMPT + encode_text(ANALYSIS + "7" * 6 + FINAL)


STREAMS = {number: encode_text("7" * (number % 5 + 1) + "<|return|>") for number in range(12)}


def make_ids_params(seed: int, most: int = 40) -> SamplingParams:
    return ids_only(make_params(max_tokens=most, seed=seed))


def test_a_cancelled_call_is_aborted_and_the_others_continue():
    engine = LLMEngine({0: encode_text("7" * 300), 1: encode_text("8<|return|>")})

    async def cancel_the_first() -> list[int]:
        looped = LoopedEngine(engine)
        first = asyncio.create_task(looped.generate(PROMPT, make_ids_params(0, 300)))
        while not engine.running:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return list((await looped.generate(PROMPT, make_ids_params(1))).outputs[0].token_ids)

    assert asyncio.run(cancel_the_first()) == encode_text("8<|return|>")
    assert engine.aborted == 1 and not engine.running


def test_an_engine_that_fails_ends_every_call_with_its_error():
    class Broken(LLMEngine):
        def step(self):
            raise RuntimeError("out of memory")

    async def generate_both() -> list:
        looped = LoopedLLM(Broken(STREAMS))

        async def generate_one(number: int) -> None:
            async for _ in looped.generate(
                {"prompt_token_ids": PROMPT}, make_ids_params(number), request_id=str(number)
            ):
                raise AssertionError("it has no output")

        return await asyncio.gather(generate_one(0), generate_one(1), return_exceptions=True)

    errors = asyncio.run(generate_both())
    assert [(type(error), str(error)) for error in errors] == [(RuntimeError, "out of memory")] * 2
