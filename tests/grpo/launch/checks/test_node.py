"""Nodes that differ from the launcher's are refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo.launch.checks import node, packages
from grpo.launch.checks.node import Needs

GB = 10**9
HOME: dict[str, Any] = {
    "python": "3.11",
    "stack": "GPU",
    "packages": {"ray": "2.55.1", "torch": "2.10.0"},
    "patches": "a1",
    "code": "c1",
    "gpus": [["H100", 0]] * 8,
    "memory": 100 * GB,
    "shared_memory": 10 * GB,
    "store": 10 * GB,
    "disk": 50 * GB,
    "models": {"/models/m": {"config.json": 7, "model.safetensors": 9}},
    "files": {"/own/reward.py": "d1"},
    "tokens": {"/runs/.token": "t1"},
}
NEEDS = Needs(8, 50 * GB, GB, ("/models/m",), ("/own/reward.py",), ("/runs/.token",))


def find_problems(**changes: Any) -> list[str]:
    return [str(problem) for problem in node.compare("10.0.0.2", HOME, {**HOME, **changes}, NEEDS)]


def test_an_equal_node_is_fit() -> None:
    assert find_problems() == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"python": "3.12"}, "node 10.0.0.2 has Python 3.12, the launcher's node 3.11"),
        ({"stack": "CPU"}, "has the stack for CPU, the launcher's node GPU"),
        ({"packages": {"ray": "2.48.0", "torch": "2.10.0"}}, "ray is 2.48.0 on node 10.0.0.2, but 2.55.1"),
        ({"packages": {"ray": "2.55.1"}}, "torch is missing on node 10.0.0.2"),
        ({"patches": None}, "OpenRLHF is patched differently on node 10.0.0.2"),
        ({"code": "c2"}, "the code in grpo, reward, patches, eval, data differs between node 10.0.0.2"),
        ({"gpus": [["H100", 5 * GB]] * 2 + [["H100", 0]] * 6}, "node 10.0.0.2 has 6 free GPUs of 8"),
        ({"memory": 40 * GB}, "40.0 GB of memory is free on node 10.0.0.2, but its part of the run needs 50.0 GB"),
        ({"store": GB // 10}, "Ray's object store on node 10.0.0.2 has 100.0 MB"),
        ({"shared_memory": GB // 10}, "/dev/shm of node 10.0.0.2 has 100.0 MB free"),
        ({"disk": GB // 10}, "the disk of temporary files of node 10.0.0.2 has 100.0 MB free"),
        ({"models": {"/models/m": None}}, "node 10.0.0.2 does not have the model /models/m"),
        (
            {"models": {"/models/m": {"config.json": 7, "model.safetensors": 8}}},
            "node 10.0.0.2 has different files for the model /models/m: model.safetensors",
        ),
        ({"files": {"/own/reward.py": None}}, "node 10.0.0.2 does not have /own/reward.py"),
        ({"files": {"/own/reward.py": "d2"}}, "node 10.0.0.2 has another /own/reward.py"),
        ({"tokens": {"/runs/.token": None}}, "does not see what the launcher's node writes to /runs"),
        ({"tokens": {"/runs/.token": "other"}}, "does not see what the launcher's node writes to /runs"),
    ],
)
def test_a_difference_is_named_with_node_and_remedy(changes: dict[str, Any], what: str) -> None:
    [problem] = find_problems(**changes)
    assert what in problem and "\n    -> " in problem


def test_a_folder_that_is_not_shared_is_named_once() -> None:
    needs = replace(NEEDS, shared=("/runs/.token", "/runs/.other"))
    here = {**HOME, "tokens": dict.fromkeys(needs.shared, "t")}
    [problem] = node.compare("10.0.0.2", here, {**here, "tokens": dict.fromkeys(needs.shared)}, needs)
    assert "writes to /runs" in problem.what


def test_gpus_of_the_cpu_stack_are_rays_alone() -> None:
    there = {**HOME, "stack": "CPU", "gpus": []}
    assert list(node.compare("10.0.0.2", {**HOME, "stack": "CPU"}, there, NEEDS)) == []


def test_facts_of_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "pins", lambda: {"ray": "0.1"})
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "token").write_text("t")
    own = node.facts([str(tmp_path / "model"), "/none"], [str(tmp_path / "token")], [str(tmp_path / "token")])
    assert own["models"] == {str(tmp_path / "model"): {"config.json": 2}, "/none": None}
    assert own["tokens"] == {str(tmp_path / "token"): "t"} and own["files"][str(tmp_path / "token")]
    assert own["patches"] and own["code"] and own["packages"]["ray"] not in ("missing", "0.1")
    needs = Needs(0, 1, 1, (str(tmp_path / "model"),), (), ())
    assert list(node.compare("10.0.0.2", own, {**own, "store": GB}, needs)) == []


def test_a_digest_changes_with_content_and_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = node.digest(tmp_path / "a")
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("compiled")
    assert node.digest(tmp_path / "a") == first
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    assert node.digest(tmp_path / "a") not in (first, None)
    assert node.digest(tmp_path / "missing") is None
