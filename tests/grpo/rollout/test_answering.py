"""An engine says which prompts it has sampled: the patched engine actor, with rewards that come when told to."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from vllm import SamplingParams

from grpo.rollout import routing
from grpo.rollout.engine import _ends, list_sampled
from tests.grpo.rollout.test_reward_threads import Tokenizer

SEED = 40


class Engine:
    """The engine actor; sample n is sampled when `ends[n]` is set, and rewarded when `reward` is."""

    def __init__(self, samples: int) -> None:
        from openrlhf.trainer.ray.vllm_engine import LLMRayActor  # seconds to import
        from openrlhf.utils.agent import SingleTurnAgentExecutor

        self.ends, self.reward, self.begun = [asyncio.Event() for _ in range(samples)], threading.Event(), 0
        self.actor = actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
        actor.executor = SingleTurnAgentExecutor()
        actor.executor.reward_endpoints, actor.executor.reward_func = ["reward.py"], self._reward
        actor.generate, actor.llm = self._generate, self
        self.taken: list[bool] = []

    async def _generate(self, ids, params):
        await self.ends[params.seed - SEED].wait()
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[2], finish_reason="stop", logprobs=None)])

    def _reward(self, queries, prompts, labels):
        self.begun += 1
        assert self.reward.wait(30)
        return {"rewards": 1.0, "scores": 1.0, "extra_logs": {}}

    async def collective_rpc(self, method, args):
        self.taken.append(SEED in list_sampled())
        return [{"shape": [1, 1], "calls": [[] for _ in args[0]]}]

    def answer(self, params: SamplingParams):
        call = self.actor.generate_responses("p", "l", params, 10, Tokenizer(), len(self.ends))
        return asyncio.create_task(call)


async def wait_until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_prompt_is_sampled_once_all_its_answers_are_and_each_is_judged_at_its_end():
    async def run():
        engine = Engine(2)
        responses = engine.answer(SamplingParams(seed=SEED, max_tokens=3))
        engine.ends[1].set()
        await wait_until(lambda: engine.begun == 1)  # the other answer is still being sampled
        assert await engine.actor.sampled() == []
        engine.ends[0].set()
        await wait_until(lambda: engine.begun == 2)
        assert await engine.actor.sampled() == [SEED] and not responses.done()
        engine.reward.set()
        assert [response["reward"] for response in await responses] == [1.0, 1.0]
        assert await engine.actor.sampled() == [] and not _ends

    asyncio.run(run())


def test_the_workers_are_not_asked_for_a_prompt_that_is_sampled():
    """They forget at a sync what they recorded."""

    async def run():
        engine = Engine(1)
        responses = engine.answer(routing.mark_recorded(SamplingParams(seed=SEED, max_tokens=3)))
        engine.ends[0].set()
        await wait_until(lambda: list_sampled() == [SEED])
        assert engine.taken == [False]
        engine.reward.set()
        assert [response["routing"].shape for response in await responses] == [(2, 1, 1)]
        assert engine.taken == [False]

    asyncio.run(run())


def test_an_answer_that_fails_counts_as_over():
    async def run():
        engine = Engine(2)

        async def execute(sampling_params, **_):
            if sampling_params.seed == SEED:
                raise ValueError("no such tool")
            await engine.ends[1].wait()

        engine.actor.executor.execute = execute
        responses = engine.answer(SamplingParams(seed=SEED, max_tokens=3))
        engine.ends[1].set()
        with pytest.raises(ValueError, match="no such tool"):
            await responses
        assert await engine.actor.sampled() == [] and not _ends

    asyncio.run(run())
