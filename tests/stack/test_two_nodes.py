"""A run on two nodes of a Ray cluster: the actor on the launcher's, the engines on the other, which is lost.

Only Ray itself places ranks and engines, and tells of a lost node.
"""

import signal
from pathlib import Path

import psutil
import pytest

from . import two_nodes
from .runs import LIMIT, read_lines, wait_for
from .two_nodes import find_holders, list_run_processes, read_until

KEY = "planted-0123456789"
# In names of metrics: what depends on the time and on the machine.
OF_THE_MACHINE = ("time", "second", "memory", "disk")


@pytest.mark.timeout(3000)
@two_nodes.needs_nodes
def test_two_nodes_give_the_numbers_of_one_until_a_node_is_lost(finished_run: Path, tmp_path: Path) -> None:
    """Before, all of the run on the launcher's node is killed, and Ray ends the rest.

    Afterwards, the run names the node that it has lost, and waits for another one; Ctrl-C ends it.
    """
    folders = two_nodes.make_folders(tmp_path)
    run = folders[0] / "run"
    with two_nodes.two_nodes(folders, gpus=(2, 2)) as cluster:
        settings = {"save_steps": "1", "eval_at_start": False, "restarts": "1", "HF_TOKEN": KEY}
        assert_refused(cluster, folders[0])
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
            wait_for((run / "checkpoints" / "step_2").is_dir)
            for process in psutil.Process(launcher.pid).children(recursive=True):
                process.kill()
            launcher.communicate(timeout=LIMIT)
            wait_for(lambda: not list_run_processes(cluster.second))
            launcher = cluster.train("--resume", run)
            output += read_until("step 3/", launcher)
            assert not list(folders[1].iterdir())
            cluster.second.lose()
            output += read_until("waiting      ", launcher)
        finally:
            for child in psutil.Process(launcher.pid).children():  # nsenter hands on no signal
                child.send_signal(signal.SIGINT)
            rest, _ = launcher.communicate(timeout=LIMIT)
        first, second = cluster.first.address, cluster.second.address
        assert f"actor       on {first}\n" in output and f"engines     on {second}\n" in output
        assert f"failed       node {second} was lost" in output, output + rest
        assert "not finished" in rest and "Traceback" not in rest
    *ends, last = read_lines(run / "ends.jsonl")
    assert ends and all(row["restart"] for row in ends) and last["code"] == 128 + signal.SIGINT
    assert ends[-1]["saved"] >= 1 and (run / "checkpoints" / f"step_{ends[-1]['saved']}" / "adapter").is_dir()
    actual = read_lines(run / "metrics.jsonl")
    # The third step was made after a resume.
    same, expected = actual[:2], read_lines(finished_run / "metrics.jsonl")[:2]
    assert [drop_machine_numbers(row) for row in same] == [drop_machine_numbers(row) for row in expected]
    for row in actual:
        assert row["judge_calls"] > 0 and row["judge_failed"] == 0, "the judge runs on the launcher's node"
    assert (run / "judge.jsonl").exists()
    for step in (1, 2):
        samples = [read_lines(folder / "samples" / f"step_{step}.jsonl") for folder in (finished_run, run)]
        assert [row["response"] for row in samples[0]] == [row["response"] for row in samples[1]]


def assert_refused(cluster: two_nodes.Cluster, folder: Path) -> None:
    """Try a run that needs a GPU more, a shared folder, and a reward that the second node lacks."""
    reward = folder / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels):\n    return 1.0\n")
    settings = {"REWARD": str(reward), "actor_num_gpus_per_node": "4"}
    check = cluster.train("--check", "--run-dir", folder / "refused", **settings)
    output, _ = check.communicate(timeout=LIMIT)
    second = cluster.second.address
    assert check.returncode == 2, output
    assert f"{reward} is missing on node {second}" in output
    assert f"node {second} may have actor ranks, and does not see what this node writes to {folder}" in output
    assert "the run needs 5 GPUs" in output and "copy it there" in output and "--ckpt_path" in output


def drop_machine_numbers(row: dict) -> dict:
    """A step without what depends on the time and on the machine."""
    return {name: value for name, value in row.items() if not any(word in name for word in OF_THE_MACHINE)}
