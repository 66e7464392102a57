"""An engine whose core is killed ends and is replaced. Nobody waits for a call that a dead core cannot answer.

vLLM's core is a process of its own. test_resume.py kills the actor of an engine, in a whole run. Other actors in a
joined cluster: a judge that dies is noticed.
"""

import os
import signal

import psutil
import pytest
import ray
from ray.exceptions import RayActorError
from transformers import AutoTokenizer
from vllm import SamplingParams

from grpo.rollout import cores
from grpo.rollout.replacement import EngineCalls
from reward import judge_place

from .trainer_and_engines import call_on_engine

pytestmark = pytest.mark.timeout(600)
PROMPTS, SAMPLES, LENGTH = 4, 4, 256


@pytest.fixture(scope="module")
def engine(tiny_model, ray_cluster):
    from openrlhf.trainer.ray import create_vllm_engines

    config = {"lora_rank": 8, "lora_scale": 2.0}
    [engine] = create_vllm_engines(
        1, 1, str(tiny_model / "bf16"), 1, False, True, True, LENGTH, gpu_memory_utilization=0.5, adapter_config=config
    )
    assert ray.get(engine.has_policy.remote())
    return engine


def find_core(engine) -> psutil.Process:
    [pid] = call_on_engine(engine, lambda actor: [core.pid for core in cores.find_own_cores()])
    return psutil.Process(pid)


def sample_prompts(engine, tiny_model, *, is_killed: bool) -> tuple[list[list[list[int]]], int]:
    """The tokens of each prompt's samples, and how many engines were replaced."""
    calls = EngineCalls([engine], AutoTokenizer.from_pretrained(tiny_model / "mxfp4"))
    sent = []
    for number in range(PROMPTS):
        params = SamplingParams(max_tokens=150, min_tokens=150, seed=100 * number, logprobs=0)
        call = {"prompt": f"What is {number} + 5?", "label": "", "sampling_params": params, "max_length": LENGTH}
        sent.append(calls.send(engine, call | {"num_samples": SAMPLES}))
    if is_killed:
        find_core(engine).send_signal(signal.SIGKILL)
    waiting, answers = dict(enumerate(sent)), {}
    while waiting:
        ready, again = calls.wait(list(waiting.values()))
        answers |= {number: ray.get(one) for number, one in waiting.items() if one in ready}
        waiting = {number: again.get(one, one) for number, one in waiting.items() if one not in ready}
    return [[one["observation_tokens"] for one in answers[number]] for number in range(PROMPTS)], calls.replaced


def test_a_call_that_a_dead_core_does_not_answer_is_not_waited_for(engine):
    core = find_core(engine)
    core.suspend()
    call = engine.reset_prefix_cache.remote()
    assert not ray.wait([call], timeout=1)[0]
    core.kill()
    with pytest.raises(RayActorError):
        ray.get(call, timeout=300)


def test_prompts_are_sampled_again_with_their_seeds(engine, tiny_model):
    """The engine is replaced twice: the test before this one has killed its core, too."""
    killed, replaced = sample_prompts(engine, tiny_model, is_killed=False)
    assert replaced == 1
    again, replaced = sample_prompts(engine, tiny_model, is_killed=True)
    assert replaced == 1
    pairs = [pair for one, other in zip(killed, again, strict=True) for pair in zip(one, other, strict=True)]
    # A near tie may round to another token.
    assert sum(a == b for a, b in pairs) >= 0.9 * len(pairs)
    assert len({tuple(tokens) for prompt in again for tokens in prompt}) > PROMPTS


def test_a_judge_that_has_died_is_noticed(ray_cluster, monkeypatch):
    monkeypatch.setenv(judge_place.VARIABLE, judge_place.NAME)
    judge = ray.remote(judge_place.JudgeActor).options(name=judge_place.NAME, num_cpus=0).remote()
    pid = ray.get(judge.__ray_call__.remote(lambda _: os.getpid()))
    judge_place.require()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RayActorError):
        ray.get(judge.__ray_ready__.remote(), timeout=60)
    with pytest.raises(RuntimeError, match="the judge's process has died"):
        judge_place.require()
