"""Samples drawn concurrently from a stepped engine, against the asynchronous calls of training."""

import asyncio
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from eval import engine
from eval.stepped import Stepped, run
from grpo.rollout.budgeted_rollout import answer_seed, budgeted_response
from grpo.rollout.thinking import Budget, delimiter
from tests.grpo.rollout.replayed_engine import CONTEXT, STOPS, Engine, ids, log_prob

HARMONY = delimiter("harmony", ids)
PROMPT = ids("<|start|>user<|message|>2+2<|end|><|start|>assistant")
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
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
        sampled, reason = replayed.whole(0, params.max_tokens)
        self.running[request_id] = SimpleNamespace(
            prompt=tokens, params=params, tokens=sampled, reason=reason, position=0
        )
        self.calls.append((tokens, params))
        self.most = max(self.most, len(self.running))

    def abort_request(self, request_ids):
        self.aborted += sum(self.running.pop(one, None) is not None for one in request_ids)

    def step(self):
        assert self.running, "a step of nothing"
        outputs = [self._output(one, self.running[one]) for one in list(self.running)[: self._places]]
        return [output for output in outputs if output]

    def _output(self, request_id, one):
        begin, one.position = one.position, min(len(one.tokens), one.position + self._chance.randint(1, 3))
        is_over = one.position == len(one.tokens)
        if is_over:
            del self.running[request_id]
        if one.params.output_kind is RequestOutputKind.FINAL_ONLY:
            begin = 0
            if not is_over:
                return None
        some = one.tokens[begin : one.position]
        scores = None if one.params.logprobs is None else [{token: log_prob(token)} for token in some]
        reason = one.reason if is_over else None
        part = CompletionOutput(0, "", some, None, logprobs=scores, finish_reason=reason)
        return RequestOutput(request_id, None, one.prompt, None, [part], is_over, num_cached_tokens=99)


WORDS = [*ids(ANALYSIS), *HARMONY.tokens, *ids("<|channel|>commentary"), *ids("7 so"), *STOPS]
STREAM = st.lists(st.sampled_from(WORDS), min_size=1, max_size=24) | st.tuples(
    st.integers(0, 12), st.integers(0, 12), st.sampled_from(["", "<|return|>", "<|call|>"])
).map(lambda sizes: ids(ANALYSIS + "7" * sizes[0] + FINAL + "8" * sizes[1] + sizes[2]))
PAIRS = st.lists(st.tuples(STREAM, STREAM), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(PAIRS, st.integers(0, 24), st.integers(2, 12), st.sampled_from([None, 1, 3]), st.integers(0, 9))
def test_concurrent_samples_equal_training_rollouts(pairs, thinking, answer, most, seed):
    budget = Budget(thinking, answer)
    asked = [SamplingParams(max_tokens=CONTEXT, min_tokens=1, seed=number, logprobs=0) for number in range(len(pairs))]
    streams = {number: first for number, (first, _) in enumerate(pairs)}
    streams |= {answer_seed(number): second for number, (_, second) in enumerate(pairs)}
    stepped = LLMEngine(streams, seed=seed)
    cut = (HARMONY, budget, CONTEXT)
    samples = ((params.seed, budgeted_response(Stepped(stepped), PROMPT, params, *cut)) for params in asked)
    rollouts = dict(run(stepped, samples, most))
    assert rollouts.keys() == set(range(len(pairs))) and stepped.most <= (most or len(pairs))
    calls = 0
    for params, pair in zip(asked, pairs, strict=True):
        alone = Engine(list(pair if thinking else pair[1:]), cached=99)
        expected = asyncio.run(budgeted_response(alone, PROMPT, params, HARMONY, budget, CONTEXT))
        assert rollouts[params.seed].trajectory == expected.trajectory
        assert rollouts[params.seed].logs() == pytest.approx(expected.logs(), nan_ok=True)
        calls += len(alone.calls)
    assert len(stepped.calls) == calls and not stepped.running, "a call that was given up is still there"


def requests(streams: list[str]) -> tuple[LLMEngine, SimpleNamespace, list[engine.Request]]:
    made = [engine.Request(f"sample {number}", PROMPT, number) for number in range(len(streams))]
    replayed = {number: ids(stream) for number, stream in enumerate(streams)}
    stepped = LLMEngine(replayed | {answer_seed(number): ids("9<|return|>") for number in replayed})
    return stepped, SimpleNamespace(llm_engine=stepped), made


STREAMS = [ANALYSIS + "77" + FINAL + "8<|return|>", "8<|call|>", ANALYSIS + "7" * 50, *["5<|return|>"] * 4]


def test_without_a_budget_each_sample_is_one_call_and_all_start_at_once():
    stepped, llm, asked = requests(STREAMS)
    samples = {request.key: sample for request, sample in engine.generate(llm, asked, SAMPLING)}
    assert [samples[request.key].tokens for request in asked] == [ids(stream)[:40] for stream in STREAMS]
    assert [samples[request.key].finish_reason for request in asked] == ["stop", "stop", "length", *["stop"] * 4]
    assert all(sample.logs == {} for sample in samples.values())
    assert stepped.most == len(stepped.calls) == len(STREAMS) and stepped.aborted == 0
    assert {(params.temperature, params.top_p, params.max_tokens) for _, params in stepped.calls} == {(0.7, 0.9, 40)}


def test_a_budget_that_is_not_hit_gives_the_same_tokens():
    streams = [stream for stream in STREAMS if "<|" in stream[-10:]]
    plain, budgeted = (requests(streams) for _ in range(2))
    expected = {request.key: sample for request, sample in engine.generate(*plain[1:], SAMPLING)}
    samples = {
        request.key: sample for request, sample in engine.generate(*budgeted[1:], SAMPLING, (HARMONY, Budget(20, 14)))
    }
    assert {key: (one.tokens, one.finish_reason) for key, one in samples.items()} == {
        key: (one.tokens, one.finish_reason) for key, one in expected.items()
    }
    assert [params.seed for _, params in budgeted[0].calls] == [params.seed for _, params in plain[0].calls]


def test_a_thought_that_is_cut_is_answered_by_a_second_call_at_once():
    stepped, llm, asked = requests(STREAMS)
    samples = {
        request.key: sample for request, sample in engine.generate(llm, asked, SAMPLING, (HARMONY, Budget(9, 4)))
    }
    cut = samples["sample 2"]
    assert cut.tokens == ids(ANALYSIS + "7" * 6 + FINAL + "9<|return|>") and cut.finish_reason == "stop"
    assert cut.logs["thinking_truncated"] == 1 and cut.logs["response_length"] == 9 + 2
    assert stepped.most == 3, "a second call waits behind others"
    second = [params.seed >= len(STREAMS) for _, params in stepped.calls]
    assert sum(second) == stepped.aborted == 2
    assert [params.skip_reading_prefix_cache for _, params in stepped.calls] == [not is_second for is_second in second]
    assert all(params.logprobs is params.prompt_logprobs is None for _, params in stepped.calls)
    prompts = {params.seed: prompt for prompt, params in stepped.calls}
    assert prompts[answer_seed(2)] == PROMPT + ids(ANALYSIS + "7" * 6 + FINAL)


def test_an_answer_that_is_cut_is_truncated():
    _, llm, asked = requests([ANALYSIS + "7" + FINAL + "8" * 9])
    [(_, sample)] = engine.generate(llm, asked, SAMPLING, (HARMONY, Budget(12, 4)))
    assert sample.finish_reason == "length" and sample.tokens == ids(ANALYSIS + "7" + FINAL + "8888")
    assert (sample.logs["thinking_truncated"], sample.logs["answer_truncated"]) == (0, 1)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_evaluation_sends_no_more_requests():
    stepped, llm, asked = requests(STREAMS)
    drawn = engine.generate(llm, asked, SAMPLING, (HARMONY, Budget(30, 4)))
    next(drawn)
    before = len(stepped.calls), stepped.aborted
    drawn.close()
    assert (len(stepped.calls), stepped.aborted) == before
