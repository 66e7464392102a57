"""The engine's actor as it is patched: sampled prompts, threads of rewards, arguments, a dead core, chosen experts."""

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config.compilation import CUDAGraphMode

from benchmarks.random_model import shrink, write_config
from grpo.model.footprint import DECODED_SEQUENCES
from grpo.rollout import engine
from grpo.rollout.engine import assemble_choices
from grpo.rollout.stage import mark_recorded
from tests.grpo.rollout.tokenizer import TOKENIZER

SEED = 40
PARAMS = SamplingParams(seed=SEED, max_tokens=3)


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
        assert self.reward.wait(400)
        return {"rewards": 1.0, "scores": 1.0, "extra_logs": {}}

    async def collective_rpc(self, method, args):
        self.taken.append(SEED in engine.list_sampled())
        return [{"shape": [1, 1], "calls": [[] for _ in args[0]]}]

    def answer(self, params: SamplingParams):
        call = self.actor.generate_responses("p", "l", params, 10, TOKENIZER, len(self.ends))
        return asyncio.create_task(call)


async def wait_until(condition) -> None:
    async with asyncio.timeout(400):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_prompt_is_sampled_once_all_its_answers_are_and_each_is_judged_at_its_end():
    async def run():
        actor = Engine(2)
        responses = actor.answer(PARAMS)
        actor.ends[1].set()
        await wait_until(lambda: actor.begun == 1)  # the other answer is still being sampled
        assert await actor.actor.sampled() == []
        actor.ends[0].set()
        await wait_until(lambda: actor.begun == 2)
        assert await actor.actor.sampled() == [SEED] and not responses.done()
        actor.reward.set()
        assert [response["reward"] for response in await responses] == [1.0, 1.0]
        assert await actor.actor.sampled() == [] and not engine._ends

    asyncio.run(run())


def test_the_workers_are_not_asked_for_a_prompt_that_is_sampled():
    """They forget at a sync what they recorded."""

    async def run():
        actor = Engine(1)
        responses = actor.answer(mark_recorded(PARAMS))
        actor.ends[0].set()
        await wait_until(lambda: engine.list_sampled() == [SEED])
        actor.reward.set()
        tokens = len(TOKENIZER.encode("p", add_special_tokens=False)) + 1
        assert [response["routing"].shape for response in await responses] == [(tokens, 1, 1)]
        assert actor.taken == [False]

    asyncio.run(run())


def test_an_answer_that_fails_counts_as_over():
    async def run():
        actor = Engine(2)

        async def execute(sampling_params, **_):
            if sampling_params.seed == SEED:
                raise ValueError("no such tool")
            await actor.ends[1].wait()

        actor.actor.executor.execute = execute
        responses = actor.answer(PARAMS)
        actor.ends[1].set()
        with pytest.raises(ValueError, match="no such tool"):
            await responses
        assert await actor.actor.sampled() == [] and not engine._ends

    asyncio.run(run())


def test_all_samples_of_an_engine_wait_for_rewards_concurrently():
    samples = 64  # more than the 32 threads of asyncio's pool on the largest machine

    async def run():
        actor, together = Engine(samples), threading.Barrier(samples, timeout=400)
        actor.actor.executor.reward_func = lambda *_, **__: {"rewards": float(together.wait() >= 0)}
        for end in actor.ends:
            end.set()
        return [response["reward"] for response in await actor.answer(PARAMS)]

    assert asyncio.run(run()) == [1.0] * samples


@pytest.mark.parametrize(
    ("sequences", "largest", "graphs"), [(DECODED_SEQUENCES, 128, 19), (1, 16, 5), (100, 112, 17), (500, 512, 51)]
)
def test_graphs_are_captured_up_to_the_sequences_of_an_engine(tmp_path, sequences, largest, graphs) -> None:
    write_config(tmp_path, shrink(layers=2))
    config = AsyncEngineArgs(model=str(tmp_path), **engine.arguments(sequences=sequences)).create_engine_config()
    assert config.scheduler_config.max_num_seqs == sequences
    compilation = config.compilation_config
    assert compilation.max_cudagraph_capture_size == largest
    # A CPU has no graphs; this is what vLLM does on a GPU.
    compilation.cudagraph_mode, compilation.cudagraph_capture_sizes = CUDAGraphMode.FULL_AND_PIECEWISE, None
    config._set_cudagraph_sizes()
    sizes = compilation.cudagraph_capture_sizes
    assert (sizes[-1], len(sizes)) == (largest, graphs)


def test_an_engine_whose_core_is_unknown_does_not_start() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), name="Something")
    other.start()
    try:
        with pytest.raises(RuntimeError, match="core"):
            engine.find_cores()
    finally:
        other.kill()
        other.join()


# An engine's actor that waits without end, as for a call that a dead core does not answer
ACTOR = """
import multiprocessing, sys, time
from types import SimpleNamespace
from grpo.rollout import engine

multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), name="EngineCore_DP0").start()
llm, engine._own_actor = SimpleNamespace(errored=False), lambda: "an actor"
engine.end_with_core(llm)
print(*engine.find_cores(), flush=True)
sys.stdin.readline()
llm.errored = True
time.sleep(300)
"""


@pytest.mark.parametrize("how", ["killed", "errored"])
def test_an_actor_ends_with_its_core(how: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", ACTOR], **pipes) as actor:
        core = psutil.Process(int(actor.stdout.readline()))
        try:
            assert actor.poll() is None
            if how == "killed":
                core.kill()
            else:
                actor.stdin.write("\n")
                actor.stdin.flush()
            assert actor.wait(400) == 1
        finally:
            core.kill()
            actor.kill()


SHAPE = (2, 2)
TOKENS = st.lists(st.integers(5, 7), max_size=6)


def make_call(tokens, first=1):
    """A call that was fed tokens; the choices count up from `first`."""
    choices = np.arange(first, first + len(tokens), dtype=np.uint8)
    return np.array(tokens, np.int32), np.broadcast_to(choices[:, None, None], (len(tokens), *SHAPE))


def pick_layer_0(routing_of):
    return routing_of[:, 0, 0].tolist()


@given(TOKENS, st.lists(TOKENS, max_size=3))
def test_a_position_has_the_choice_of_the_first_call_that_was_fed_all_tokens_up_to_it(tokens, fed):
    calls = [make_call(each, 1 + 50 * number) for number, each in enumerate(fed)]
    expected = [
        next((1 + 50 * n + at for n, each in enumerate(fed) if each[: at + 1] == tokens[: at + 1]), 0)
        for at in range(len(tokens))
    ]
    assert pick_layer_0(assemble_choices(tokens, calls, SHAPE)) == expected
