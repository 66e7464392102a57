"""What a run has started on another node ends with its driver, and if the launcher's node is lost."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.launch.supervise import processes
from grpo.stack import seats
from grpo.stack.seats import Seats

from . import two_nodes
from .runs import LIMIT, wait_for
from .two_nodes import list_files, list_run_processes, read_until

pytestmark = [pytest.mark.timeout(3000), two_nodes.needs_nodes]
DRIVER = """
import ray, subprocess, sys, time
from grpo.launch.supervise import nodes
from grpo.stack import cluster, seats
ray.init(log_to_driver=False, runtime_env=cluster.runtime_env())
nodes.start_helpers()

@ray.remote
class Engine:
    def start(self):  # as vLLM does: a process of its own, which outlives this one
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)

engine = Engine.options(**cluster.make_node_options(seats.read().others[0])).remote()
ray.get(engine.start.remote())
print("up", flush=True)
time.sleep(900)
"""


def test_a_node_ends_what_was_started_there(tmp_path: Path) -> None:
    with two_nodes.two_nodes(two_nodes.make_folders(tmp_path), gpus=(0, 0)) as cluster:
        before = list_files(cluster.second)

        def is_nothing_left() -> bool:
            return not list_run_processes(cluster.second) and set(list_files(cluster.second)) <= set(before)

        driver = start_driver(cluster)
        for child in psutil.Process(driver.pid).children():  # nsenter hands on no signal
            child.kill()
        driver.wait(60)
        wait_for(is_nothing_left)

        driver = start_driver(cluster)
        state = subprocess.run(
            cluster.first.make_command(sys.executable, "-P", "-m", "grpo.launch.supervise.cluster_state"),
            env=make_environment(cluster),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert f"== node {cluster.second.address}" in state.stdout, state.stderr
        assert "<module> (<string>:1)" in state.stdout, "the stack of the process that the engine started"
        cluster.first.lose()
        driver.wait(60)
        wait_for(is_nothing_left)  # Ray ends too, and deletes its own


def start_driver(cluster: two_nodes.Cluster) -> "subprocess.Popen[str]":
    driver = subprocess.Popen(
        cluster.first.make_command(sys.executable, "-c", DRIVER),
        env=make_environment(cluster),
        stdout=subprocess.PIPE,
        text=True,
    )
    read_until("up", driver)
    assert len(list_run_processes(cluster.second)) >= 3, "the actor of the agent, the engine, and its own process"
    assert "/tmp/grpo-a" in list_files(cluster.second)
    return driver


def make_environment(cluster: two_nodes.Cluster) -> dict[str, str]:
    places = Seats(cluster.first.address, (cluster.second.address,), (cluster.first.address,))
    variables = {seats.VARIABLE: places.dump(), processes.RUN_ID_VARIABLE: "a-run", "TMPDIR": "/tmp/grpo-a/tmp"}
    return cluster.make_environment(RAY_ADDRESS=cluster.address, **variables)
