"""A thinking budget on a real vLLM engine: calls that are given up, and the prefix cache."""

import asyncio
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams

from benchmarks.engine_speed import make_actor
from grpo.rollout.budgeted_rollout import budgeted_response
from grpo.rollout.thinking import Budget, delimiter
from grpo.rollout.trajectory import Origin
from scripts.tiny_model.tokenizer import SPECIAL_TOKENS

LENGTH, THINKING, ANSWER, SAMPLES = 512, 150, 20, 4
PROMPT = "<|start|>user<|message|>2 + 2<|end|><|start|>assistant<|channel|>analysis<|message|>"


class Recorder:
    """An engine that keeps what it was asked, and the first answer to each call."""

    def __init__(self, llm) -> None:
        self._llm, self.firsts = llm, []

    async def generate(self, prompt, params, request_id):
        index = None
        async for output in (stream := self._llm.generate(prompt, params, request_id=request_id)):
            if index is None:
                index = len(self.firsts)
                self.firsts.append(output)
            try:
                yield output
            except GeneratorExit:
                await stream.aclose()
                raise


async def cut_thoughts(actor, tokenizer):
    """Roll out with a budget that is hit; return rollouts, calls, and the delimiters' log-probs without a cache."""
    made = delimiter("harmony", lambda text: tokenizer.encode(text, add_special_tokens=False))
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    recorder = Recorder(actor.llm)
    # Tokens that would end the thinking or the response are never drawn, and neither are header tokens.
    never = {token: -100.0 for token in tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))}
    params = [
        SamplingParams(max_tokens=400, min_tokens=1, seed=seed, temperature=2.0, logprobs=0, logit_bias=never)
        for seed in range(SAMPLES)
    ]
    budget = Budget(THINKING, ANSWER)
    calls = (budgeted_response(recorder, prompt, one, made, budget, LENGTH) for one in params)
    rollouts = await asyncio.gather(*calls)
    left = actor.get_num_unfinished_requests()
    stops = list(range(7, len(tokenizer), 12))
    short = SamplingParams(max_tokens=400, temperature=2.0, logprobs=0, logit_bias=never, stop_token_ids=stops)
    plain, unreached = [], []
    for seed in range(SAMPLES):
        short.seed = seed
        plain.append(list((await actor.generate(prompt, short)).outputs[0].token_ids))
        unreached.append(await budgeted_response(actor.llm, prompt, short, made, budget, LENGTH))
    for one in rollouts:
        forced = [token for token, origin in zip(one.trajectory.tokens, one.trajectory.origins, strict=True)
                  if origin is Origin.FORCED]  # fmt: skip
        assert tuple(forced) == made.tokens
    return SimpleNamespace(rollouts=rollouts, firsts=recorder.firsts, left=left, plain=plain, unreached=unreached)


@pytest.fixture(scope="module")
def cut(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "bf16")
    with asyncio.Runner() as loop:
        actor = make_actor(tiny_model / "bf16", SAMPLES, LENGTH, load_format="auto")
        try:
            return loop.run(cut_thoughts(actor, tokenizer))
        finally:
            actor.llm.shutdown()


@pytest.mark.timeout(400)
def test_thoughts_are_cut_and_answered(cut):
    for one in cut.rollouts:
        assert one.thought == THINKING and one.logs()["thinking_truncated"] == 1
        assert one.logs()["answer_length"] == ANSWER and one.is_truncated
    assert len({tuple(one.trajectory.tokens) for one in cut.rollouts}) == SAMPLES
    assert cut.left == 0, "a call that was given up is still there"


@pytest.mark.timeout(400)
def test_a_budget_that_is_not_reached_changes_no_token(cut):
    assert max(map(len, cut.plain)) > 10 and len(set(map(tuple, cut.plain))) > 1
    for plain, budgeted in zip(cut.plain, cut.unreached, strict=True):
        assert budgeted.trajectory.tokens[-len(plain) :] == plain and budgeted.logs()["thinking_truncated"] == 0


@pytest.mark.timeout(400)
def test_the_second_call_finds_the_thought_in_the_cache(cut):
    seconds = [output for output in cut.firsts if len(output.prompt_token_ids) > THINKING]
    assert len(seconds) == SAMPLES
    assert all(output.num_cached_tokens >= THINKING // 2 for output in seconds)
