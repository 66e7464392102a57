"""A run on two nodes of a Ray cluster: the actor on the launcher's, the engines on the other."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.faults import assert_seen

from . import two_nodes
from .runs import LIMIT, lines, wait_for
from .two_nodes import files_of, holders, run_processes, seen_until

KEY = "planted-0123456789"
# In names of metrics: what depends on the time and on the machine.
OF_THE_MACHINE = ("time", "second", "memory", "disk")


@pytest.mark.timeout(3000)
@two_nodes.needs_nodes
def test_engines_on_the_other_node_give_the_numbers_of_one_node(finished: Path, tmp_path: Path) -> None:
    """The run is ended by SIGTERM after two of its steps."""
    folders = two_nodes.folders_of(tmp_path)
    run = folders[0] / "run"
    with two_nodes.two_nodes(folders, gpus=(2, 2)) as cluster:
        before = files_of(cluster.second)
        settings = {"SAVE_STEPS": "2", "EVAL_AT_START": "0", "HF_TOKEN": KEY}
        launcher = cluster.train("--run-dir", run, "--steps", len(lines(finished / "metrics.jsonl")), **settings)
        output = seen_until("step 1/", launcher)
        assert holders(cluster.first, KEY) == ["environ"], "only in environments: of the launcher and what it starts"
        assert holders(cluster.second, KEY) == []
        output += seen_until("step 2/", launcher)
        for child in psutil.Process(launcher.pid).children():  # nsenter hands on no signal
            child.send_signal(signal.SIGTERM)
        output += launcher.communicate(timeout=LIMIT)[0]
        assert launcher.returncode == 128 + signal.SIGTERM, output[-5000:]
        assert_seen("SIGTERM", output)
        assert (
            f"nodes       {cluster.first.address}: the launcher, the controller and the judge; actor ranks 0, 1"
            in output
        )
        assert f"{cluster.second.address}: engines 0, 1" in output
        wait_for(lambda: not run_processes(cluster.second))
        assert set(files_of(cluster.second)) <= set(before), "nothing of the run is left on the other node"
        assert not list(folders[1].iterdir())
    actual = lines(run / "metrics.jsonl")
    expected = lines(finished / "metrics.jsonl")[: len(actual)]
    assert len(actual) >= 2 and [numbers(row) for row in actual] == [numbers(row) for row in expected]
    for row in actual:
        assert row["judge_calls"] > 0 and row["judge_failed"] == 0, "the judge runs on the launcher's node"
    assert (run / "judge.sqlite").exists() and (run / "checkpoints" / f"step_{len(actual)}" / "adapter").is_dir()
    for step in range(1, len(actual) + 1):
        samples = [lines(folder / "samples" / f"step_{step}.jsonl") for folder in (finished, run)]
        assert [row["response"] for row in samples[0]] == [row["response"] for row in samples[1]]


def numbers(row: dict) -> dict:
    """A step without what depends on the time and on the machine."""
    return {name: value for name, value in row.items() if not any(word in name for word in OF_THE_MACHINE)}
