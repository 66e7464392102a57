"""A run on two nodes of a Ray cluster: the actor on the launcher's, the engines on the other, which is lost."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.faults import Stopwatch, assert_seen, note

from . import two_nodes
from .runs import LIMIT, read_lines
from .two_nodes import find_holders, read_until

KEY = "planted-0123456789"
# In names of metrics: what depends on the time and on the machine.
OF_THE_MACHINE = ("time", "second", "memory", "disk")


@pytest.mark.timeout(3000)
@two_nodes.needs_nodes
def test_two_nodes_give_the_numbers_of_one_until_a_node_is_lost(finished_run: Path, tmp_path: Path) -> None:
    """The run then names the node and waits for another one; Ctrl-C ends it."""
    folders = two_nodes.make_folders(tmp_path)
    run = folders[0] / "run"
    with two_nodes.two_nodes(folders, gpus=(2, 1)) as cluster:
        settings = {"SAVE_STEPS": "1", "EVAL_AT_START": "0", "RESTARTS": "1", "HF_TOKEN": KEY}
        launcher = cluster.train(
            "--run-dir", run, "--steps", len(read_lines(finished_run / "metrics.jsonl")), **settings
        )
        try:
            output = read_until("step 1/", launcher)
            assert find_holders(cluster.first, KEY) == ["environ"], (
                "only in environments: of the launcher and what it starts"
            )
            assert find_holders(cluster.second, KEY) == []
            output += read_until("step 2/", launcher)
            assert not list(folders[1].iterdir())
            cluster.second.lose()
            watch = Stopwatch()
            output += read_until("waiting for GPUs", launcher)
            note("a node of a cluster is lost", watch.seconds())
        finally:
            for child in psutil.Process(launcher.pid).children():  # nsenter hands on no signal
                child.send_signal(signal.SIGINT)
            rest, _ = launcher.communicate(timeout=LIMIT)
        first, second = cluster.first.address, cluster.second.address
        assert f"nodes       {first}: the launcher, the controller and the judge; actor ranks 0, 1" in output
        assert f"{second}: engine 0" in output
        assert f"failed       node {second} was lost" in output, output + rest
        assert_seen("a node of a cluster is lost", output)
        assert "not finished" in rest and "Traceback" not in rest
    *ends, last = read_lines(run / "ends.jsonl")
    assert ends and all(row["restart"] for row in ends) and last["code"] == 128 + signal.SIGINT
    assert ends[-1]["saved"] >= 1 and (run / "checkpoints" / f"step_{ends[-1]['saved']}" / "adapter").is_dir()
    actual = read_lines(run / "metrics.jsonl")
    expected = read_lines(finished_run / "metrics.jsonl")[: len(actual)]
    assert len(actual) >= 2 and [drop_machine_numbers(row) for row in actual] == [
        drop_machine_numbers(row) for row in expected
    ]
    for row in actual:
        assert row["judge_calls"] > 0 and row["judge_failed"] == 0, "the judge runs on the launcher's node"
    assert (run / "judge.jsonl").exists()
    for step in range(1, len(actual) + 1):
        samples = [read_lines(folder / "samples" / f"step_{step}.jsonl") for folder in (finished_run, run)]
        assert [row["response"] for row in samples[0]] == [row["response"] for row in samples[1]]


def drop_machine_numbers(row: dict) -> dict:
    """A step without what depends on the time and on the machine."""
    return {name: value for name, value in row.items() if not any(word in name for word in OF_THE_MACHINE)}
