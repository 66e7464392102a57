"""A run on two nodes of a Ray cluster: the actor on the launcher's, the engines on the other."""

import json
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
from .runs import LIMIT, lines, train, wait_for

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not two_nodes.can_make_nodes(), reason="needs root and network namespaces"),
]
SMALL = {
    "ROLLOUT_BATCH_SIZE": "4", "N_SAMPLES_PER_PROMPT": "4", "TRAIN_BATCH_SIZE": "16", "MICRO_TRAIN_BATCH_SIZE": "4",
    "MICRO_ROLLOUT_BATCH_SIZE": "4", "EVAL_STEPS": "-1", "EVAL_AT_START": "0", "SAVE_STEPS": "1",
}  # fmt: skip
KEY = "planted-0123456789"
# In names of metrics: what depends on the time and on the machine.
OF_THE_MACHINE = ("time", "second", "memory", "disk")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder for each node, which the other does not see."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


def test_engines_on_the_other_node_give_the_numbers_of_one_node(
    tiny_model: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    train("--run-dir", tmp_path / "alone", "--steps", 2, **SMALL)
    with two_nodes.two_nodes(folders, gpus=(2, 2)) as cluster:
        before = files_of(cluster.second)
        launcher = cluster.train("--run-dir", folders[0] / "run", "--steps", 2, **SMALL, HF_TOKEN=KEY)
        output = seen_until("step 1/2", launcher)
        assert holders(cluster.first) == ["environ"], "the launcher and what it starts itself, in their environment"
        assert holders(cluster.second) == []
        output += launcher.communicate(timeout=LIMIT)[0]
        assert launcher.returncode == 0, output[-5000:]
        assert (
            f"nodes       {cluster.first.address}: the launcher, the controller and the judge; actor ranks 0, 1"
            in output
        )
        assert f"{cluster.second.address}: engines 0, 1" in output
        wait_for(lambda: not run_processes(cluster.second))
        assert set(files_of(cluster.second)) <= set(before), "nothing of the run is left on the other node"
        assert not list(folders[1].iterdir())
    run = folders[0] / "run"
    expected, actual = lines(tmp_path / "alone" / "metrics.jsonl"), lines(run / "metrics.jsonl")
    assert [numbers(row) for row in actual] == [numbers(row) for row in expected]
    for row in actual:
        assert row["judge_calls"] > 0 and row["judge_failed"] == 0, "the judge runs on the launcher's node"
    assert (run / "judge.sqlite").exists() and (run / "checkpoints" / "step_2" / "adapter").is_dir()
    samples = [lines(folder / "samples" / "step_2.jsonl") for folder in (tmp_path / "alone", run)]
    assert [row["response"] for row in samples[0]] == [row["response"] for row in samples[1]]


def test_a_lost_node_is_named_and_the_run_waits_for_another(tiny_model: Path, folders: tuple[Path, Path]) -> None:
    run = folders[0] / "run"
    variables = SMALL | {"NUM_ENGINES": "1", "ACTOR_GPUS": "1", "RESTARTS": "1"}
    with two_nodes.two_nodes(folders, gpus=(1, 1)) as cluster:
        launcher = cluster.train("--run-dir", run, "--steps", 50, **variables)
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
        assert "a signal ended the wait for GPUs" in rest and "Traceback" not in rest
        assert f"failed       node {cluster.second.address} was lost" in shown, shown + rest
        assert_seen("a node of a cluster is lost", shown)
        assert not [row for row in lines(run / "ends.jsonl") if not row["restart"]]
    saved = [json.loads(line) for line in (run / "ends.jsonl").read_text().splitlines()][-1]["saved"]
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


def test_a_node_ends_what_was_started_there_if_the_launchers_node_is_lost(folders: tuple[Path, Path]) -> None:
    with two_nodes.two_nodes(folders, gpus=(0, 0)) as cluster:
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


def seen_until(text: str, launcher: "subprocess.Popen[str]") -> str:
    """What the launcher prints up to a line with a text."""
    assert launcher.stdout
    shown = ""
    for line in launcher.stdout:
        shown += line
        if text in line:
            return shown
    raise AssertionError(f"not seen: {text}\n{shown[-5000:]}")


def numbers(row: dict) -> dict:
    """A step without what depends on the time and on the machine."""
    return {name: value for name, value in row.items() if not any(word in name for word in OF_THE_MACHINE)}


def holders(node: two_nodes.Node) -> list[str]:
    """The kinds of files on a node that have the planted key: of processes, of its memory, of its disk."""
    places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /tmp /dev/shm"
    found = node.run("sh", "-c", f"grep -rla '[p]{KEY[1:]}' {places} 2>/dev/null || true").split()
    return sorted({Path(file).name for file in found})


def run_processes(node: two_nodes.Node) -> list[str]:
    """The processes of a node that have the id of a run."""
    needle = processes.RUN_ID_VARIABLE
    found = node.run("sh", "-c", f"grep -l {needle} /proc/[0-9]*/environ || true")
    return found.split()


def files_of(node: two_nodes.Node) -> list[str]:
    """What is in a node's /dev/shm and /tmp, except Ray's own folder."""
    return sorted(node.run("find", "/dev/shm", "/tmp", "-maxdepth", "1", "-not", "-name", "ray").split())
