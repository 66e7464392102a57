"""Only a cluster of this machine alone can be joined. A small package stands in for Ray."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.launch import __main__ as launcher
from grpo.launch import judge, preflight
from grpo.launch.supervise import joined_cluster

HERE = socket.gethostname()
RAY = """
import time
def init(log_to_driver): {init}
def nodes(): return {nodes}
print("what Ray says on its way")
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Install a fake Ray with these nodes (name, is it alive) and return the problems found."""

    def check(*nodes: tuple[str, bool], init: str = "pass") -> list[str]:
        rows = [{"NodeManagerHostname": name, "Alive": alive} for name, alive in nodes]
        (tmp_path / "ray.py").write_text(RAY.format(init=init, nodes=f"__import__('json').loads({json.dumps(rows)!r})"))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        return [str(problem) for problem in joined_cluster.look().problems]

    return check


def test_this_machine_alone_is_joined(cluster) -> None:
    assert cluster((HERE, True)) == []
    assert cluster((HERE, True), ("lost", False)) == [], "a node that is gone does not count"


def test_cluster_without_authentication_is_reported_as_open(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster((HERE, True))
    [warning] = joined_cluster.look().warnings
    assert "10.0.0.1:6379 is open" in warning and "RAY_AUTH_MODE=token" in warning
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert joined_cluster.look().warnings == [warning], "what we would send does not close it"


def test_cluster_that_requires_a_token_is_joined_with_ours(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wants_token = "{'token': 'welcome'}[__import__('os').environ['RAY_AUTH_MODE']]"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert cluster((HERE, True), init=wants_token) == []
    assert joined_cluster.look() == joined_cluster.Admission()
    monkeypatch.delenv("RAY_AUTH_MODE")
    [problem] = cluster((HERE, True), init=wants_token)
    assert "cannot be joined: KeyError: 'disabled'" in problem


def test_several_nodes_are_refused(cluster) -> None:
    [problem] = cluster((HERE, True), ("second", True))
    assert f"10.0.0.1:6379 has 2 nodes: {HERE}, second" in problem and "unset RAY_ADDRESS" in problem


def test_another_machine_is_refused(cluster) -> None:
    [problem] = cluster(("second", True))
    assert "runs on another machine, second" in problem and "start the run there" in problem


def test_a_cluster_that_cannot_be_joined_is_named_with_the_reason(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    [problem] = cluster(init="raise RuntimeError('Version mismatch')")
    assert "cannot be joined: RuntimeError: Version mismatch" in problem
    monkeypatch.setattr(joined_cluster, "PROBE_SECONDS", 0.5)
    [problem] = cluster(init="time.sleep(60)")
    assert "did not answer" in problem


def test_the_launcher_refuses(
    cluster, setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster((HERE, True), ("second", True))
    monkeypatch.setattr(preflight, "problems", lambda *args, **others: [])
    monkeypatch.setattr(judge, "check", lambda *args: [])
    words = ["launch", "check", "--stand-in", "--run-dir", str(setting.run_dir), "--", *setting.words()]
    monkeypatch.setattr(sys, "argv", words)
    assert launcher.main() == launcher.REFUSED
    assert "has 2 nodes" in capsys.readouterr().err and not setting.run_dir.exists()


def test_without_a_cluster_to_join_ray_is_not_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_cluster.sys, "executable", "/nonexistent")
    assert joined_cluster.look() == joined_cluster.Admission()
