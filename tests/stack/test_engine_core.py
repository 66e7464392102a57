"""An engine ends when its core, vLLM's own process, is killed. Nobody waits for a call that a dead core cannot answer.

In whole runs, test_resume.py kills the actor of an engine, and test_one_gpu.py a core. Other actors in a joined
cluster: a judge that dies is noticed.
"""

import os
import signal

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from grpo.rollout import engine as rollout_engine
from reward import judge_actor

from .trainer_and_engines import call_on_engine

pytestmark = pytest.mark.timeout(600)


def test_a_call_that_a_dead_core_does_not_answer_is_not_waited_for(tiny_model, ray_cluster):
    from openrlhf.trainer.ray import create_vllm_engines

    config = {"lora_rank": 8, "lora_scale": 2.0}
    [engine] = create_vllm_engines(
        1, 1, str(tiny_model / "bf16"), 1, False, True, True, 256, gpu_memory_utilization=0.5, adapter_config=config
    )
    [pid] = call_on_engine(engine, lambda actor: rollout_engine.find_cores())
    core = psutil.Process(pid)
    core.suspend()
    call = engine.reset_prefix_cache.remote()
    assert not ray.wait([call], timeout=1)[0]
    core.kill()
    with pytest.raises(RayActorError):
        ray.get(call, timeout=300)


def test_a_judge_that_has_died_is_noticed(ray_cluster, monkeypatch):
    monkeypatch.setenv(judge_actor.VARIABLE, judge_actor.NAME)
    judge = ray.remote(judge_actor.JudgeActor).options(name=judge_actor.NAME, num_cpus=0).remote()
    pid = ray.get(judge.__ray_call__.remote(lambda _: os.getpid()))
    judge_actor.require()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RayActorError):
        ray.get(judge.__ray_ready__.remote(), timeout=60)
    with pytest.raises(RuntimeError, match="judge"):
        judge_actor.require()
