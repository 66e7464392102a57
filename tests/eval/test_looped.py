"""Conversations drawn concurrently from an offline engine, against the calls of training."""

import asyncio
import random

import pytest
from vllm import SamplingParams

from eval.looped import LoopedEngine, LoopedLLM
from grpo.rollout.engine import ids_only
from tests.eval.test_stepped import PROMPT, LLMEngine
from tests.grpo.rollout.multi_turn.scripted import params
from tests.grpo.rollout.replayed_engine import ids

STREAMS = {number: ids("7" * (number % 5 + 1) + "<|return|>") for number in range(12)}


def asked(seed: int, most: int = 40) -> SamplingParams:
    return ids_only(params(max_tokens=most, seed=seed))


@pytest.mark.parametrize("order", range(5))
def test_each_caller_gets_its_own_tokens(order):
    engine = LLMEngine(STREAMS, seed=order)
    pause = random.Random(order)

    async def two_turns(looped: LoopedEngine, number: int) -> list[list[int]]:
        turns = []
        for seed in (number, number + 6):
            await asyncio.sleep(pause.random() / 200)  # a tool
            output = await looped.generate(PROMPT, asked(seed))
            assert output.finished and list(output.prompt_token_ids) == PROMPT
            turns.append(list(output.outputs[0].token_ids))
        return turns

    async def all_of_them() -> list[list[list[int]]]:
        looped = LoopedEngine(engine)
        return await asyncio.gather(*(two_turns(looped, number) for number in range(6)))

    told = asyncio.run(all_of_them())
    assert [turns[1] for turns in told] == [STREAMS[number + 6] for number in range(6)]
    assert not engine.running and len(engine.calls) == 12 and engine.aborted == 0


def test_a_cancelled_call_is_aborted_and_the_others_continue():
    engine = LLMEngine({0: ids("7" * 300), 1: ids("8<|return|>")})

    async def cancel_the_first() -> list[int]:
        looped = LoopedEngine(engine)
        first = asyncio.create_task(looped.generate(PROMPT, asked(0, 300)))
        while not engine.running:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return list((await looped.generate(PROMPT, asked(1))).outputs[0].token_ids)

    assert asyncio.run(cancel_the_first()) == ids("8<|return|>")
    assert engine.aborted == 1 and not engine.running


def test_an_engine_that_fails_ends_every_call_with_its_error():
    class Broken(LLMEngine):
        def step(self):
            raise RuntimeError("out of memory")

    async def both() -> list:
        looped = LoopedLLM(Broken(STREAMS))

        async def one(number: int) -> None:
            async for _ in looped.generate({"prompt_token_ids": PROMPT}, asked(number), request_id=str(number)):
                raise AssertionError("it has no output")

        return await asyncio.gather(one(0), one(1), return_exceptions=True)

    errors = asyncio.run(both())
    assert [(type(error), str(error)) for error in errors] == [(RuntimeError, "out of memory")] * 2
