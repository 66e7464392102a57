"""Which clusters a run joins, and who gets which node there. A small package stands in for Ray."""

import json
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo.launch import __main__ as launcher
from grpo.launch import judge, preflight
from grpo.launch.config import Config
from grpo.launch.refusals import REFUSED
from grpo.launch.supervise import joined_cluster
from grpo.stack import seats
from grpo.stack.seats import Seats

HERE = socket.gethostname()
RAY = """
import json, time
def init(log_to_driver): {init}
def nodes(): return json.loads({nodes!r})
class Context:
    def get_node_id(self): return "0"
get_runtime_context = Context
print("what Ray says on its way")
"""
STATE = """
import json
def available_resources_per_node(): return json.loads({free!r})
"""


@pytest.fixture
def check_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Install a fake Ray with these nodes (name, is it alive) and return the problems found.

    The first node is this one. Each has 16 GPUs, of which `free` are free.
    """

    def check(*nodes: tuple[str, bool], init: str = "pass", free: int = 16) -> list[str]:
        rows = [
            {"NodeManagerHostname": name, "NodeManagerAddress": f"10.0.0.{i + 1}", "NodeID": str(i), "Alive": alive}
            | {"Resources": {"GPU": 16.0}}
            for i, (name, alive) in enumerate(nodes)
        ]
        (tmp_path / "ray" / "_private").mkdir(parents=True, exist_ok=True)
        (tmp_path / "ray" / "__init__.py").write_text(RAY.format(init=init, nodes=json.dumps(rows)))
        gpus = {str(i): {"GPU": float(free)} for i in range(len(nodes))}
        (tmp_path / "ray" / "_private" / "state.py").write_text(STATE.format(free=json.dumps(gpus)))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # a file rewritten within a second looks the same
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        return [str(problem) for problem in look().problems]

    return check


def look(patience: float = 0.0, shared: bool = False) -> joined_cluster.Admission:
    args = Namespace(
        vllm_num_engines=4, vllm_tensor_parallel_size=2, actor_num_nodes=1, actor_num_gpus_per_node=8,
        colocate_all_models=shared,
    )  # fmt: skip
    return joined_cluster.look(Config(args, {}, []), patience)


def test_this_machine_alone_is_joined_and_reported_as_open_without_authentication(check_cluster, monkeypatch) -> None:
    assert check_cluster((HERE, True)) == []
    [warning] = look().warnings
    assert "10.0.0.1:6379 is open" in warning and "RAY_AUTH_MODE=token" in warning
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert look().warnings == [warning], "what we would send does not close it"
    assert check_cluster((HERE, True), ("lost", False)) == [], "a node that is gone does not count"


WANTS_TOKEN = "{'token': 'welcome'}[__import__('os').environ['RAY_AUTH_MODE']]"


def test_cluster_that_requires_a_token_is_joined_with_ours(check_cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = check_cluster((HERE, True), init=WANTS_TOKEN)
    assert "cannot be joined: KeyError: 'disabled'" in problem
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert look() == joined_cluster.Admission()


def test_several_nodes_are_joined_with_a_token(check_cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = check_cluster((HERE, True), ("second", True))
    assert f"10.0.0.1:6379 has 2 nodes ({HERE}, second) and admits anyone" in problem
    assert "RAY_AUTH_MODE=token" in problem
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert check_cluster((HERE, True), ("second", True), ("lost", False), init=WANTS_TOKEN) == []
    found = look()
    assert found.seats == Seats("10.0.0.1", ("10.0.0.2",) * 4, ("10.0.0.1",) * 8) and found.warnings == []
    assert joined_cluster.describe(found.seats) == [
        "nodes       10.0.0.1: the launcher, the controller and the judge; actor ranks 0 to 7",
        "            10.0.0.2: engines 0 to 3",
    ]


@pytest.mark.parametrize(
    ("others", "free", "said"),
    [
        ([("second", True)], 3, "no room for 4 engines of 2 GPUs and 8 actor ranks: free GPUs: 10.0.0.1 has 3"),
        ([], 15, "the run needs 16 GPUs, but 15 of 16 are free"),
    ],
)
def test_a_cluster_without_enough_free_gpus_is_refused(check_cluster, monkeypatch, capsys, others, free, said) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    [problem] = check_cluster((HERE, True), *others, init=WANTS_TOKEN, free=free)
    assert said in problem and capsys.readouterr().out == ""


def test_engines_and_ranks_that_share_gpus_need_these_once_on_one_node(check_cluster, monkeypatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_cluster((HERE, True), init=WANTS_TOKEN, free=8)
    assert look(shared=True) == joined_cluster.Admission()
    check_cluster((HERE, True), init=WANTS_TOKEN, free=7)
    [problem] = look(shared=True).problems
    assert "the run needs 8 GPUs, but 7 of 16 are free" in problem.what
    check_cluster((HERE, True), ("second", True), init=WANTS_TOKEN)
    [problem] = look(shared=True).problems
    assert "share GPUs, is for one node" in problem.what and f"2 nodes ({HERE}, second)" in problem.what
    assert "COLOCATE=0" in problem.remedy


@pytest.mark.parametrize(
    ("is_second_there", "free", "said"),
    [(True, 3, "6 of 32 on 2 nodes are free, 16 needed"), (False, 8, "8 of 16 on 1 node are free, 16 needed")],
)
def test_a_restart_waits_for_gpus_and_for_a_lost_node(
    check_cluster, monkeypatch, capsys, is_second_there, free, said
) -> None:
    """A node comes back, or its GPUs are free again, while the launcher waits."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_cluster((HERE, True), ("second", is_second_there), init=WANTS_TOKEN, free=free)
    comes_back = partial(check_cluster, (HERE, True), ("second", True), init=WANTS_TOKEN, free=8)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: comes_back())
    monkeypatch.setattr(joined_cluster, "time", clock)
    assert look(patience=600).seats == Seats("10.0.0.1", ("10.0.0.2",) * 4, ("10.0.0.1",) * 8)
    assert f"waiting for GPUs: {said}" in capsys.readouterr().out


def test_a_cluster_that_cannot_be_joined_is_named_with_the_reason(
    check_cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [problem] = check_cluster(("second", True))
    assert "runs on other machines: second" in problem and "start the run there" in problem
    [problem] = check_cluster(init="raise RuntimeError('Version mismatch')")
    assert "cannot be joined: RuntimeError: Version mismatch" in problem
    monkeypatch.setattr(joined_cluster, "PROBE_SECONDS", 0.5)
    [problem] = check_cluster(init="time.sleep(60)")
    assert "did not answer" in problem


def test_the_launcher_refuses(
    check_cluster, setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_cluster((HERE, True), ("second", True))
    monkeypatch.setattr(preflight, "problems", lambda *args, **others: [])
    monkeypatch.setattr(judge, "check", lambda *args: [])
    words = ["check", "--stand-in", "--run-dir", str(setting.run_dir), "--", *setting.make_words()]
    assert launcher.main(words) == REFUSED
    assert "has 2 nodes" in capsys.readouterr().err and not setting.run_dir.exists()


def test_without_a_cluster_to_join_ray_is_not_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_cluster.sys, "executable", "/nonexistent")
    monkeypatch.setenv(seats.VARIABLE, "of an earlier part")
    assert look() == joined_cluster.Admission()
