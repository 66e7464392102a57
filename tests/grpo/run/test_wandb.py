"""Weights & Biases with its own package: offline, with a login, and without a key."""

import json
from types import SimpleNamespace

import pytest

from grpo.run import trackers

wandb = pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No key, and no settings of the user's."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "WANDB_BASE_URL", "WANDB_DIR", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wandb.teardown()  # else its service keeps working as long as these tests


def log_in(home, host: str) -> None:
    (home / ".netrc").write_text(f"machine {host}\n login user\n password {'a' * 40}\n")
    (home / ".netrc").chmod(0o600)


def test_without_a_key_the_ways_to_give_one_are_named():
    problem = trackers.wandb_problem()
    assert "no key" in problem.what
    assert all(way in problem.remedy for way in ("WANDB_API_KEY", "wandb login", "WANDB_MODE=offline"))


def test_offline_needs_no_key(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert trackers.wandb_problem() is None


def test_a_login_is_a_key_and_a_server_that_does_not_answer_is_named(own_home, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    log_in(own_home, "127.0.0.1:9")
    problem = trackers.wandb_problem()
    assert "http://127.0.0.1:9 does not answer" in problem.what and "WANDB_MODE=offline" in problem.remedy


def test_an_offline_run_writes_into_the_run_directory(own_home, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = own_home / "run 1"
    run_dir.mkdir()
    names = {"wandb_org": None, "wandb_project": "p", "wandb_group": None, "wandb_run_name": "mine"}
    args = SimpleNamespace(use_wandb="1", run_dir=str(run_dir), **names)
    started = trackers.Trackers([trackers.Wandb(args, 0)])
    started.log("train", 1, {"reward": 0.5})
    started.close()
    page = json.loads((run_dir / "wandb.json").read_text())
    (folder,) = (run_dir / "wandb").glob(f"offline-run-*-{page['id']}")
    assert list(folder.glob("*.wandb"))
    assert not (own_home / "wandb").exists()
