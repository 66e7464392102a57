"""Processes that the zygote forks, against those that Python starts.

Only a copy of a real driver shows what a fork has of it, and what of that a worker must not have.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.stack import zygote

pytestmark = pytest.mark.timeout(900)
DRIVER = """
import os, time
import torch
from openrlhf.cli import train_ppo_ray
from grpo.stack import zygote
torch.of_driver = os.getpid()
zygote.start()
print("started", flush=True)
time.sleep(600)
"""
# Tells what it is, as a script of a worker of Ray sees it, what it shares with the driver, and how what it spawns ends.
SCRIPT = """
import json, multiprocessing, os, ray, signal, sys, time, torch
def tell():
    told = {"drawn": ray.ObjectRef.from_random().hex(), "environment": dict(os.environ), "pid": os.getpid()}
    return told | {"driver": getattr(torch, "of_driver", None)}
def spawned(pipe):
    os.environ["TOLD"] = "late"
    print("spawned")
    pipe.send(tell())
    pipe.recv()
if __name__ == "__main__":
    os.environ["OF_WORKER"] = "1"
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=spawned, args=[there])
    process.start()
    child = here.recv()
    os.kill(process.pid, signal.SIGKILL)
    process.join(400)
    told = {"words": sys.argv, "folder": os.getcwd(), "threads": torch.get_num_threads(), "ended": process.exitcode}
    print(json.dumps(tell() | told | {"child": child, "spawned": process.pid}), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    socket = tmp_path_factory.mktemp("zygote") / "socket"
    own = {zygote.VARIABLE: str(socket), "RAY_JOB_ID": zygote.FIRST_JOB, "PYTHONSAFEPATH": "1"}
    return os.environ | own | {"OMP_NUM_THREADS": "1", "MARK": "of-the-run"}


@pytest.fixture(scope="module")
def driver(variables):
    process = subprocess.Popen([sys.executable, "-c", DRIVER], env=variables, stdout=subprocess.PIPE, text=True)
    assert "started\n" in process.stdout  # after what the imports print
    yield process
    process.kill()
    process.wait()


def start_worker(variables, folder, **changes):
    """Start what Ray starts as a worker; return the pipe that it and its forks write to."""
    (folder / "default_worker.py").write_text(SCRIPT)
    (folder / "setup_worker.py").write_text(
        "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    env_context = f"--serialized-runtime-env-context={json.dumps({'env_vars': {'OF_JOB': '1'}})}"
    words = [str(folder / "default_worker.py"), "--node", "a b", env_context, "--language=PYTHON"]
    command = [sys.executable, zygote.__file__, *words]
    return subprocess.Popen(command, env=variables | changes, cwd=folder, stdout=subprocess.PIPE, text=True)


def read_words(process):
    assert process.stdout.readline() == "spawned\n"
    return json.loads(process.stdout.readline())


def test_a_worker_and_what_it_spawns_are_forks_with_what_was_asked_for(driver, variables, tmp_path):
    process = start_worker(variables, tmp_path, OF_RAYLET="1")
    told = read_words(process)
    assert process.wait(400) == 0, "nothing waits for it"
    assert told["driver"] == told["child"]["driver"] == driver.pid
    assert told["words"] == [str(tmp_path / "default_worker.py"), "--node", "a b"]
    assert told["folder"] == str(tmp_path) and told["threads"] == 1
    assert told["environment"].items() >= {"OF_JOB": "1", "OF_RAYLET": "1", "OF_WORKER": "1"}.items()
    assert told["child"]["environment"] == told["environment"] | {"TOLD": "late"}
    assert told["child"]["drawn"] != told["drawn"], "calls of two engines have ids of their own"
    assert told["child"]["pid"] == told["spawned"] and told["ended"] == -signal.SIGKILL
    fork = psutil.Process(told["pid"])
    assert fork.cmdline()[0] == "zygote", "not the driver's words: it is looked up by them"
    assert b"MARK=of-the-run" in Path(f"/proc/{fork.pid}/environ").read_bytes().split(b"\0"), "it is looked up by that"
    fork.kill()


@pytest.mark.parametrize("changes", [{"RAY_JOB_ID": "02000000"}, {zygote.VARIABLE: "/nowhere"}])
def test_without_a_server_of_its_job_python_starts_as_usual(driver, variables, tmp_path, changes):
    process = start_worker(variables, tmp_path, **changes)
    told = read_words(process)
    assert told["words"][1:3] == ["--node", "a b"] and told["driver"] is told["child"]["driver"] is None
    assert told["pid"] == process.pid
    process.kill()
    process.wait()


def test_the_server_ends_with_the_driver(driver, variables, tmp_path):
    fork = psutil.Process(read_words(start_worker(variables, tmp_path))["pid"])
    server = fork.parent()
    driver.kill()
    driver.wait()
    server.wait(400)
    assert fork.is_running(), "Ray and the launcher end it"
    fork.kill()
