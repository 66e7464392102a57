"""What is compared between the nodes of a cluster, and how a difference is named."""

import shutil
from pathlib import Path

import pytest

from grpo.launch.checks import node, packages


def test_a_node_equals_itself_and_every_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    paths = [str(tmp_path / "model"), "/none"]
    home = node.facts(paths)
    assert list(node.compare("10.0.0.2", home, node.facts(paths))) == []
    assert home["/none"] is None and None not in {**home, "/none": ""}.values()
    for name in home:
        [problem] = node.compare("10.0.0.2", home, {**home, name: "other"})
        assert name in problem.what and "node 10.0.0.2" in problem.what and problem.remedy
    monkeypatch.setattr(packages, "pins", lambda: {"ray": "0.1"})
    (tmp_path / "model" / "config.json").write_text("{ }")
    there = node.facts(paths)
    [model] = node.compare("10.0.0.2", {paths[0]: home[paths[0]]}, there)
    assert paths[0] in model.what and "copy it" in model.remedy


def test_a_digest_changes_with_content_place_and_size_of_what_is_large(tmp_path: Path, monkeypatch) -> None:
    folder, copy = tmp_path / "a", tmp_path / "b"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "x.py").write_text("1")
    first = node.digest(folder, "*.py")
    (folder / "inner" / "x.pyc").write_text("compiled")
    assert node.digest(folder, "*.py") == first == node.digest(folder, "*.py")
    shutil.copytree(folder, copy)
    assert node.digest(copy) == node.digest(folder)
    (copy / "inner" / "x.py").rename(copy / "inner" / "y.py")
    assert node.digest(copy, "*.py") not in (first, None)
    monkeypatch.setattr(node, "LARGE", 4)
    (folder / "w.safetensors").write_bytes(b"12345")
    large = node.digest(folder)
    (folder / "w.safetensors").write_bytes(b"54321")
    assert node.digest(folder) == large, "too large to read"
    (folder / "w.safetensors").write_bytes(b"123456")
    assert node.digest(folder) != large
    assert node.digest(tmp_path / "missing") is None
