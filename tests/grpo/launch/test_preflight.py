"""All checks together, and the checks of the software: packages and patches."""

from pathlib import Path

import pytest

from grpo.launch import preflight

from .conftest import CLEAN

pytestmark = pytest.mark.usefixtures("ample_machine")


def test_a_good_setting_has_no_problem(setting) -> None:
    assert setting.find_problems() == []


def test_all_problems_are_listed_at_once(setting) -> None:
    assert len(setting.find_problems(prompt_data="/none.jsonl", pretrain="org/absent", train_batch_size=6)) >= 3


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"state": "pristine", "applied": 0, "message": "not patched", "next": "./apply_patches.sh"}, "not patched"),
        ({"state": "drifted", "message": "some are not"}, "some are not"),
        ({"code": 6, "state": None, "message": None, "error": "digests.json is broken"}, "digests.json is broken"),
    ],
)
def test_unclean_patches_are_rejected(
    setting, monkeypatch: pytest.MonkeyPatch, status: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(preflight, "patch_status", lambda: CLEAN | status)
    [problem] = setting.find_problems()
    assert message in problem and "./apply_patches.sh" in problem


def test_a_patch_tool_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(preflight, "CHECKOUT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [problem] = preflight.check_patches()
    assert "No module named" in str(problem)
