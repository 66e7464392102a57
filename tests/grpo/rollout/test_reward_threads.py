"""No sample of an engine waits for a thread: the patched engine actor, with a reward that waits for all others."""

import asyncio
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest
from vllm import SamplingParams

from grpo.rollout import engine

PROMPTS, SAMPLES = 8, 8  # more than the 32 threads of asyncio's pool on the largest machine


class Tokenizer:
    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def get_added_vocab(self):
        return {}

    def encode(self, text, **_):
        return [1]

    def decode(self, ids, **_):
        return "text"


def test_all_samples_of_an_engine_wait_for_rewards_concurrently():
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor  # seconds to import
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    together = threading.Barrier(PROMPTS * SAMPLES, timeout=30)

    def give_reward(queries, prompts, labels):
        together.wait()
        return {"rewards": 1.0, "scores": 1.0, "extra_logs": {}}

    async def generate(ids, params):
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[2], finish_reason="stop", logprobs=None)])

    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    actor.executor = SingleTurnAgentExecutor()
    actor.executor.reward_endpoints, actor.executor.reward_func = ["reward.py"], give_reward
    actor.generate = generate
    params = SamplingParams(seed=0, max_tokens=3)

    async def roll_out():
        prompts = (actor.generate_responses(f"p{n}", "l", params, 10, Tokenizer(), SAMPLES) for n in range(PROMPTS))
        return await asyncio.gather(*prompts)

    rewards = [sample["reward"] for prompt in asyncio.run(roll_out()) for sample in prompt]
    assert rewards == [1.0] * PROMPTS * SAMPLES


def test_a_loop_gets_its_threads_once_and_no_more_than_it_needs():
    names = set()

    async def run_in_turn():
        for _ in range(20):
            engine.provide_reward_threads()
            names.add(await asyncio.to_thread(lambda: threading.current_thread().name))

    asyncio.run(run_in_turn())
    # A thread that has just answered may not be idle yet when the next sample comes.
    assert 1 <= len(names) <= 3 and all(name.startswith("reward") for name in names)


def test_without_an_event_loop_providing_threads_raises():
    with pytest.raises(RuntimeError):
        engine.provide_reward_threads()
