import pytest

from grpo import guard


def test_without_a_launcher_nothing_is_checked(monkeypatch, tmp_path):
    monkeypatch.delenv(guard.DIGEST_VARIABLE, raising=False)
    guard.check_digest(tmp_path)


def test_another_digest_is_refused(monkeypatch):
    monkeypatch.setattr(guard.patches, "digest", lambda _: "a" * 64)
    monkeypatch.setenv(guard.DIGEST_VARIABLE, "a" * 64)
    guard.check_digest("openrlhf")
    monkeypatch.setenv(guard.DIGEST_VARIABLE, "b" * 64)
    with pytest.raises(guard.PatchDigestError, match=r"aaaaaaaaaaaa.*bbbbbbbbbbbb.*apply_patches\.sh status"):
        guard.check_digest("openrlhf")
