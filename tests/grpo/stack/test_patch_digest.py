import pytest

from grpo.stack import patch_digest
from grpo.stack.problem import UserError


def test_without_a_launcher_nothing_is_checked(monkeypatch, tmp_path):
    monkeypatch.delenv(patch_digest.DIGEST_VARIABLE, raising=False)
    patch_digest.check_digest(tmp_path)


def test_another_digest_is_refused(monkeypatch):
    monkeypatch.setattr(patch_digest.patches, "digest", lambda _: "a" * 64)
    monkeypatch.setenv(patch_digest.DIGEST_VARIABLE, "a" * 64)
    patch_digest.check_digest("openrlhf")
    monkeypatch.setenv(patch_digest.DIGEST_VARIABLE, "b" * 64)
    with pytest.raises(UserError, match=r"apply_patches\.sh"):
        patch_digest.check_digest("openrlhf")
