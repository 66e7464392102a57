"""The location of a model, and the description of the checkout."""

import subprocess
from pathlib import Path

import pytest

from grpo.stack import checkout
from grpo.stack.checkout import TINY_MODEL, git_revision
from grpo.stack.hub import absence, model_folder
from grpo.stack.problem import UserError


def test_a_hub_id_becomes_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--openai--gpt-oss-120b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    (repository / "snapshots" / "abc123").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert model_folder("openai/gpt-oss-120b") == str(repository / "snapshots" / "abc123")
    assert model_folder("openai/gpt-oss-20b") == "openai/gpt-oss-20b", "left for the preflight"


def test_the_revision_is_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    assert git_revision() is None, "no checkout"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    clean = git_revision()
    assert clean and len(clean["commit"]) == 40 and not clean["dirty"]
    (tmp_path / "file").touch()
    assert git_revision() == clean | {"dirty": True}


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("org/absent", "hub", "hf download org/absent"),
        ("/nope", "is not a folder", "name the folder"),
        ("./org/absent", "is not a folder", "name the folder"),
        ("runs/a/final", "is not a folder", "name the folder"),
        ("~/model", "is not a folder", "~"),
        (__file__, "is a file", "name the folder"),
        (str(TINY_MODEL / "absent"), "is not built yet", "./train_grpo.sh --tiny builds it"),
    ],
)
def test_the_remedy_for_a_missing_model(name, what, remedy):
    said = absence(name)
    assert what in said[0] and remedy in said[1]
    assert ("hf download" in said[1]) == (name == "org/absent")


def test_another_openrlhf_than_the_launchers_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv(checkout.DIGEST_VARIABLE, raising=False)
    checkout.check_digest(tmp_path)
    monkeypatch.setattr("patches.digest", lambda _: "a" * 64)
    monkeypatch.setenv(checkout.DIGEST_VARIABLE, "a" * 64)
    checkout.check_digest("openrlhf")
    monkeypatch.setenv(checkout.DIGEST_VARIABLE, "b" * 64)
    with pytest.raises(UserError, match=r"apply_patches\.sh"):
        checkout.check_digest("openrlhf")
