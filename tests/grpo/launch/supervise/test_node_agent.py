"""The agent of a node ends what has the run's id, and only that, when its pipe closes."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from grpo.launch.supervise import processes
from grpo.launch.supervise.node_agent import NodeAgent
from grpo.stack import machine
from tests.supervised import is_alive, wait_until

WORK = "import sys, time; print('up', flush=True); time.sleep(600)"
# Ignores SIGTERM, and holds a file of shared memory that nobody else would delete.
STUBBORN = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 4096)
held = mmap.mmap(file, 4096)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run_id() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    for process in processes.find_marked(name):
        process.kill()


def start(code: str, run_id: str, *words: object, called: str = sys.executable) -> subprocess.Popen[bytes]:
    """Start a process of a run, as Ray would: not below the agent."""
    environment = {**os.environ, processes.RUN_ID_VARIABLE: run_id}
    process = subprocess.Popen(
        [called, "-c", code, *map(str, words)],
        executable=sys.executable,
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout and process.stdout.readline()
    return process


def list_agents(run_id: str) -> list[psutil.Process]:
    named = (process for process in psutil.process_iter(["cmdline"]) if run_id in (process.info["cmdline"] or []))
    return [process for process in named if "grpo.launch.supervise.node_agent" in process.info["cmdline"]]


def test_the_run_ends_when_the_actor_does(tmp_path: Path, run_id: str) -> None:
    folder, memory = tmp_path / "run", machine.SHM / f"agent-test-{run_id}"
    actor = NodeAgent(run_id, str(folder))
    assert (folder / "tmp").is_dir() and actor.answer()
    other = start(WORK, "another run")
    mine = [start(WORK, run_id), start(STUBBORN, run_id, memory)]
    wait_until(lambda: len(list_agents(run_id)) == 1, "the agent did not start")
    [agent] = list_agents(run_id)
    time.sleep(1.5)  # the agent looks at new shared memory
    assert actor._pipe
    actor._pipe.close()  # as Ray's SIGKILL does
    for process in mine:
        process.wait(60)
    wait_until(lambda: not is_alive(agent.pid), "the agent lives on")
    assert not folder.exists() and not memory.exists()
    assert other.poll() is None
    other.kill()


def test_the_agent_outlives_signals_and_its_parent(tmp_path: Path, run_id: str) -> None:
    actor = NodeAgent(run_id, str(tmp_path / "run"))
    [agent] = list_agents(run_id)
    assert agent.ppid() != os.getpid(), "Ray ends the children of an actor"
    agent.terminate()
    time.sleep(0.5)
    assert is_alive(agent.pid)
    assert actor._pipe
    actor._pipe.close()
    wait_until(lambda: not is_alive(agent.pid), "the agent lives on")


def test_deaths_are_told(tmp_path: Path, run_id: str) -> None:
    actor = NodeAgent(run_id, str(tmp_path / "run"))
    engine = start(WORK, run_id, called="ray::LLMRayActor")
    wait_until(lambda: engine.pid in actor._witness.list_watched(), "the engine is not watched")
    engine.kill()
    wait_until(lambda: not is_alive(engine.pid), "the engine lives on")
    [death] = actor.deaths()
    assert death["role"] == "an engine" and death["pid"] == engine.pid
    engine.wait(60)
    assert actor._pipe
    actor._pipe.close()
