"""A run folder from elsewhere brings no code and no address along."""

import http.server
import json
import shutil
import threading
from pathlib import Path

import pytest

from grpo.run import own_runs
from grpo.run.progress import resume_command

from .recipe import launch


@pytest.fixture
def checkout(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_runs, "CHECKOUT", tmp_path / "checkout")
    return tmp_path / "checkout"


@pytest.fixture
def server():
    """A server at which the key would arrive, and the requests that it got."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", asked
        listening.shutdown()


def write_run(folder: Path, **settings: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    changes = {name: [value, ""] for name, value in settings.items()}
    (folder / "config.json").write_text(json.dumps({"name": "tiny", "changes": changes, "flags": {}}))
    return str(folder)


def test_the_code_and_the_address_that_only_a_run_folder_names_are_not_used(checkout, server, tmp_path) -> None:
    url, asked = server
    ran, reward = tmp_path / "ran", tmp_path / "run" / "reward.py"
    folder = write_run(tmp_path / "run", REWARD=str(reward), ENVIRONMENT=str(reward), JUDGE_BASE_URL=url)
    reward.write_text(
        f"open({str(ran)!r}, 'w')\ndef reward_func(queries, prompts, labels): return {{'rewards': [0.0]}}\n"
    )
    for mode in ("--check", "--plan", "--dry-run"):
        done = launch("--tiny", mode, "--resume", folder, GEMINI_API_KEY="a-key")
        assert done.returncode == 2 and not ran.exists() and not asked
        for name in ("REWARD=", "ENVIRONMENT=", "JUDGE_BASE_URL="):
            assert name in done.stderr
    launch("--tiny", "--check", REWARD=str(reward))
    assert ran.exists(), "a reward that the user names is run"
    judged = write_run(tmp_path / "judged", JUDGE_BASE_URL=url)
    assert "JUDGE_BASE_URL=" in launch("--tiny", "--check", "--resume", judged, GEMINI_API_KEY="a-key").stderr
    assert not asked
    launch("--tiny", "--check", JUDGE_BASE_URL=url, GEMINI_API_KEY="a-key")
    assert asked, "a judge that the user names is asked"


def test_a_run_of_this_checkout_brings_what_it_named(checkout, tmp_path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    named = {"REWARD": "/my reward.py", "JUDGE_BASE_URL": "https://gateway.example", "LORA_RANK": "4"}
    own_runs.record(mine, named)
    own_runs.refuse_others(mine, named)
    own_runs.refuse_others(mine, {"REWARD": named["REWARD"]})
    for folder, settings in ((other, named), (mine, named | {"REWARD": "/other.py"}), (mine, {"ENVIRONMENT": "e.py"})):
        with pytest.raises(own_runs.UserError, match="--resume"):
            own_runs.refuse_others(folder, settings)
    own_runs.refuse_others(other, {"ENVIRONMENT": "python retrieval", "REWARD": "", "LORA_RANK": "4"})
    shutil.rmtree(checkout)
    with pytest.raises(own_runs.UserError):
        own_runs.refuse_others(mine, named)


@pytest.mark.parametrize("flag", ["ckpt_path", "metrics_dir"])
def test_a_run_folder_names_no_folder_to_write_to_outside_of_itself(checkout, tmp_path, flag) -> None:
    """A resume removes checkpoints and lines of later steps there."""
    name = {"ckpt_path": "CKPT_DIR", "metrics_dir": "METRICS_DIR"}[flag]
    folder, disk = tmp_path / "run", str(tmp_path / "disk")
    write_run(folder, **{name: str(folder)})
    config = json.loads((folder / "config.json").read_text())

    def resume(place: str, **variables: str) -> str:
        flags = {flag: place, "run_dir": "/run"}
        (folder / "config.json").write_text(json.dumps(config | {"flags": flags}))
        return launch("--tiny", "--dry-run", "--resume", str(folder), **variables).stderr

    for place in (disk, "/run/../disk"):
        assert f"{name}=" in resume(place)
    assert f"{name}=" not in resume(disk, **{name: disk}) + resume("/run/disk")
    own_runs.record(folder, {name: disk})
    assert f"{name}=" not in resume(disk)


def test_a_file_in_the_run_folder_is_not_taken_from_the_record(checkout, tmp_path) -> None:
    """Another run folder may have been copied over this one, with another file of that name."""
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for value in (f"{tmp_path}/mine/r.py", f"/other.py {tmp_path}/link/r.py"):
        own_runs.record(tmp_path / "mine", {"REWARD": value})
        with pytest.raises(own_runs.UserError):
            own_runs.refuse_others(tmp_path / "mine", {"REWARD": value})


def test_the_command_that_continues_a_run_brings_no_code_or_address_of_a_folder_from_elsewhere(
    checkout, tmp_path
) -> None:
    """Who copies that command gives what it names."""
    named = {"REWARD": "/r.py", "JUDGE_BASE_URL": "https://j", "--remote_rm_url": "http://r", "--agent_func_path": "a"}
    config = {"changes": {name: [value, ""] for name, value in {**named, "SEED": "7"}.items()}}
    assert resume_command(tmp_path, config) == f"SEED=7 ./train_grpo.sh --resume {tmp_path}"
    for odd in ("/a\0b.py", "/\ud800.py", "caf\udce9.py"):
        assert "REWARD" not in resume_command(tmp_path, {"changes": {"REWARD": [odd, ""]}})
    own_runs.record(tmp_path, named)
    assert resume_command(tmp_path, config) == (
        f"REWARD=/r.py JUDGE_BASE_URL=https://j SEED=7 ./train_grpo.sh --resume {tmp_path} "
        "-- --remote_rm_url http://r --agent_func_path a"
    )


@pytest.mark.parametrize("changes", [{"REWARD": 7}, ["REWARD"], {"REWARD": None}, "x"])
def test_a_run_folder_with_other_types_is_no_traceback(checkout, tmp_path, changes) -> None:
    folder = write_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"changes": changes, "config": changes}))
    assert launch("--tiny", "--dry-run", "--resume", folder).returncode == 2
