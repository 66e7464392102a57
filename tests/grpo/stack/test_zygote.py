"""Processes that the zygote forks, against those that Python starts."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from grpo.stack import zygote

DRIVER = """
import os, sys, time
import torch
from grpo.stack import zygote
torch.of_driver = os.getpid()
zygote.start([])
time.sleep(600)
"""
# Tells what it is as a worker's script of Ray would see it, and what it shares with the driver.
SCRIPT = """
import json, multiprocessing, os, sys, torch
if __name__ == "__main__":
    os.write(int(os.environ["PIPE"]), b"written")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(eval, ("vars(__import__('torch')).get('of_driver')",))
    told = {"words": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ)}
    told["threads"] = torch.get_num_threads()
    print(json.dumps(told | {"driver": getattr(torch, "of_driver", None), "spawned": spawned}))
    sys.stdin.read()
"""


@pytest.fixture
def variables(tmp_path):
    return dict(os.environ) | {zygote.VARIABLE: str(tmp_path / "socket"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def driver(variables, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", DRIVER], env=variables)
    until = time.monotonic() + 120
    while not (tmp_path / "socket").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    yield process
    process.kill()
    process.wait()


def start(variables, tmp_path, words=()):
    """Start what Ray starts as a worker; return the process, and the end of the pipe that it writes to."""
    (tmp_path / "default_worker.py").write_text(SCRIPT)
    (tmp_path / "setup_worker.py").write_text(
        "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    end, pipe = os.pipe()
    command = [sys.executable, zygote.__file__, str(tmp_path / "default_worker.py"), *words]
    process = subprocess.Popen(
        command, env=variables | {"PIPE": str(pipe)}, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        pass_fds=[pipe], text=True,
    )  # fmt: skip
    os.close(pipe)
    return process, end


def test_a_fork_is_what_was_asked_for(driver, variables, tmp_path):
    context = json.dumps({"env_vars": {"OF_JOB": "1"}})
    words = ["--node", "a b", f"--serialized-runtime-env-context={context}", "--language=PYTHON"]
    process, end = start(variables, tmp_path, words)
    told = json.loads(process.stdout.readline())
    assert told["words"] == [str(tmp_path / "default_worker.py"), "--node", "a b"]
    assert told["environment"]["OF_JOB"] == "1" and told["threads"] == 1
    assert told["folder"] == str(tmp_path) and os.read(end, 100) == b"written"
    assert told["driver"] == told["spawned"] == driver.pid, "the imports are the driver's, also in what it spawns"
    assert process.poll() is None, "it ends with the fork"
    process.communicate()
    assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_fork(driver, variables, tmp_path, number):
    process, _ = start(variables, tmp_path)
    process.stdout.readline()
    process.send_signal(number)
    assert process.stdout.read() == "", "the fork had it open, too"
    assert process.wait(30) == (-number if number == signal.SIGKILL else 0)


def test_without_a_zygote_python_starts_as_usual(variables, tmp_path):
    process, _ = start(variables, tmp_path, ["--node"])
    told = json.loads(process.stdout.readline())
    assert told["words"][1:] == ["--node"] and told["driver"] is None
    process.communicate()
    assert process.wait(30) == 0
