"""A node of a Ray cluster is lost: the run waits for another one, and nothing of it lives on."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.launch.supervise import processes
from grpo.stack import seats
from grpo.stack.seats import Seats
from tests.faults import Stopwatch, assert_seen, note

from . import two_nodes
from .runs import LIMIT, lines, wait_for
from .two_nodes import files_of, run_processes, seen_until

pytestmark = [pytest.mark.timeout(3000), two_nodes.needs_nodes]
SMALL = {
    "ROLLOUT_BATCH_SIZE": "4", "N_SAMPLES_PER_PROMPT": "4", "TRAIN_BATCH_SIZE": "16", "MICRO_TRAIN_BATCH_SIZE": "4",
    "MICRO_ROLLOUT_BATCH_SIZE": "4", "EVAL_STEPS": "-1", "EVAL_AT_START": "0", "SAVE_STEPS": "1",
    "NUM_ENGINES": "1", "ACTOR_GPUS": "1", "RESTARTS": "1",
}  # fmt: skip


def test_a_lost_node_is_named_and_the_run_waits_for_another(tiny_model: Path, tmp_path: Path) -> None:
    folders = two_nodes.folders_of(tmp_path)
    run = folders[0] / "run"
    with two_nodes.two_nodes(folders, gpus=(1, 1)) as cluster:
        launcher = cluster.train("--run-dir", run, "--steps", 50, **SMALL)
        try:
            metrics = run / "metrics.jsonl"
            wait_for(lambda: metrics.exists() and len(lines(metrics)) >= 2, launcher)
            cluster.second.lose()
            watch = Stopwatch()
            shown = seen_until("waiting for GPUs", launcher)
            note("a node of a cluster is lost", watch.seconds())
        finally:
            for child in psutil.Process(launcher.pid).children():  # nsenter hands on no signal
                child.send_signal(signal.SIGINT)
            rest, _ = launcher.communicate(timeout=LIMIT)
        assert "not finished" in rest and "Traceback" not in rest
        assert f"failed       node {cluster.second.address} was lost" in shown, shown + rest
        assert_seen("a node of a cluster is lost", shown)
    *ends, last = lines(run / "ends.jsonl")
    assert ends and all(row["restart"] for row in ends) and last["code"] == 128 + signal.SIGINT
    saved = ends[-1]["saved"]
    assert saved >= 1 and (run / "checkpoints" / f"step_{saved}").is_dir()


DRIVER = """
import ray, subprocess, sys, time
from grpo.launch.supervise import nodes
from grpo.stack import cluster, seats
ray.init(log_to_driver=False, runtime_env=cluster.runtime_env())
nodes.settle()

@ray.remote
class Engine:
    def start(self):  # as vLLM does: a process of its own, which outlives this one
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)

engine = Engine.options(**cluster.at(seats.read().others[0])).remote()
ray.get(engine.start.remote())
print("up", flush=True)
time.sleep(900)
"""


def test_a_node_ends_what_was_started_there_if_the_launchers_node_is_lost(tmp_path: Path) -> None:
    with two_nodes.two_nodes(two_nodes.folders_of(tmp_path), gpus=(0, 0)) as cluster:
        before = files_of(cluster.second)
        places = Seats(cluster.first.address, (cluster.second.address,), (cluster.first.address,))
        variables = {seats.VARIABLE: places.dump(), processes.RUN_ID_VARIABLE: "a-run", "TMPDIR": "/tmp/grpo-a/tmp"}
        driver = subprocess.Popen(
            cluster.first.command(sys.executable, "-c", DRIVER),
            env=cluster.environment(RAY_ADDRESS=cluster.address, **variables),
            stdout=subprocess.PIPE,
            text=True,
        )
        seen_until("up", driver)
        assert len(run_processes(cluster.second)) >= 3, "the actor of the agent, the engine, and its own process"
        assert "/tmp/grpo-a" in files_of(cluster.second)
        state = subprocess.run(
            cluster.first.command(sys.executable, "-P", "-m", "grpo.launch.supervise.cluster_state"),
            env=cluster.environment(RAY_ADDRESS=cluster.address, **variables),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert f"== node {cluster.second.address}" in state.stdout, state.stderr
        assert "<module> (<string>:1)" in state.stdout, "the stack of the process that the engine started"
        cluster.first.lose()
        driver.wait(60)
        wait_for(lambda: not run_processes(cluster.second))
        wait_for(lambda: set(files_of(cluster.second)) <= set(before))  # Ray ends too, and deletes its own
