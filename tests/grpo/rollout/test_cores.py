"""An engine's actor ends when its core dies."""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest
import ray

from grpo.rollout import cores, engine


@pytest.fixture
def start_child() -> Iterator:
    """Start a process as vLLM starts a core; like some cores, it has no title."""
    processes: list[multiprocessing.process.BaseProcess] = []

    def start(name: str) -> multiprocessing.process.BaseProcess:
        processes.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), name=name))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def test_an_engine_whose_core_is_unknown_does_not_start(start_child) -> None:
    start_child("Something")
    with pytest.raises(RuntimeError, match="core"):
        cores.find_own_cores()


def test_outside_of_ray_there_is_no_actor() -> None:
    assert cores.own_actor() is None


# An engine's actor that waits without end, as for a call that a dead core does not answer
ACTOR = """
import multiprocessing, sys, time
from types import SimpleNamespace
from grpo.rollout import cores

multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), name="EngineCore_DP0").start()
[found] = cores.find_own_cores()
llm = SimpleNamespace(errored=False)
cores.end_with(llm, [found])
print(found.pid, flush=True)
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
            assert actor.wait(60) == 1
        finally:
            core.kill()
            actor.kill()


def test_an_engine_outside_of_ray_starts_no_cluster():
    params = SimpleNamespace(extra_args=None, seed=None)
    assert asyncio.run(engine.answer(SimpleNamespace(), params, [asyncio.sleep(0, {})])) == [{engine.SAMPLED_BY: None}]
    assert not ray.is_initialized()
