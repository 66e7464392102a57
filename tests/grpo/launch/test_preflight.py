"""All checks together, and the checks of the software: packages and patches."""

import pytest

from grpo.launch import preflight

from .conftest import CLEAN

pytestmark = pytest.mark.usefixtures("ample_machine")


def test_a_good_setting_has_no_problem(setting) -> None:
    assert setting.find_problems() == []


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
