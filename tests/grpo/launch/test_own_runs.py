"""A run folder from elsewhere brings no code and no address along."""

import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from grpo.flags.parser import Asked
from grpo.launch import run_dir
from grpo.run import own_runs

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


def write_run(folder: Path, **flags: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    asked = Asked(flags, dict.fromkeys(flags, "command line"), tiny=True)
    (folder / "config.json").write_text(json.dumps({"asked": run_dir.record_asked(asked), "flags": {}}))
    return str(folder)


def test_the_code_and_the_address_that_only_a_run_folder_names_are_not_used(checkout, server, tmp_path) -> None:
    url, asked = server
    ran, reward = tmp_path / "ran", tmp_path / "run" / "reward.py"
    folder = write_run(tmp_path / "run", remote_rm_url=str(reward), environment=str(reward), judge_base_url=url)
    reward.write_text(
        f"open({str(ran)!r}, 'w')\ndef reward_func(queries, prompts, labels): return {{'rewards': [0.0]}}\n"
    )
    key = {"GEMINI_API_KEY": "a-key"}
    for mode in ("--check", "--plan", "--dry-run"):
        done = launch(mode, "--resume", folder, environ=key)
        assert done.returncode == 2 and not ran.exists() and not asked
        for name in ("--remote_rm_url", "--environment", "--judge_base_url"):
            assert f"{name} " in done.stderr
    launch("--tiny", "--check", "--remote_rm_url", str(reward))
    assert ran.exists(), "a reward that the user names is run"
    judged = write_run(tmp_path / "judged", judge_base_url=url)
    assert "--judge_base_url " in launch("--check", "--resume", judged, environ=key).stderr
    assert not asked
    launch("--tiny", "--check", "--judge_base_url", url, environ=key)
    assert asked, "a judge that the user names is asked"


def test_a_run_of_this_checkout_brings_what_it_named(checkout, tmp_path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    named = {"remote_rm_url": "/my reward.py", "judge_base_url": "https://gateway.example", "lora_rank": "4"}
    own_runs.record(mine, named)
    own_runs.refuse_others(mine, named)
    own_runs.refuse_others(mine, {"remote_rm_url": named["remote_rm_url"]})
    for folder, settings in (
        (other, named),
        (mine, named | {"remote_rm_url": "/other.py"}),
        (mine, {"environment": "e.py"}),
    ):
        with pytest.raises(own_runs.UserError, match="--resume"):
            own_runs.refuse_others(folder, settings)
    own_runs.refuse_others(other, {"environment": "python retrieval", "lora_rank": "4"})
    shutil.rmtree(checkout)
    with pytest.raises(own_runs.UserError):
        own_runs.refuse_others(mine, named)


@pytest.mark.parametrize("flag", ["ckpt_path", "metrics_dir"])
def test_a_run_folder_names_no_folder_to_write_to_outside_of_itself(checkout, tmp_path, flag) -> None:
    """A resume removes checkpoints and lines of later steps there."""
    folder, disk = tmp_path / "run", str(tmp_path / "disk")
    write_run(folder, **{flag: str(folder)})
    config = json.loads((folder / "config.json").read_text())

    def resume(place: str, *words: str) -> str:
        flags = {flag: place, "run_dir": "/run"}
        (folder / "config.json").write_text(json.dumps(config | {"flags": flags}))
        return launch("--dry-run", "--resume", str(folder), *words).stderr

    for place in (disk, "/run/../disk"):
        assert f"--{flag} " in resume(place)
    assert f"--{flag} " not in resume(disk, f"--{flag}", disk) + resume("/run/disk")
    own_runs.record(folder, {flag: disk})
    assert f"--{flag} " not in resume(disk)


def test_a_file_in_the_run_folder_is_not_taken_from_the_record(checkout, tmp_path) -> None:
    """Another run folder may have been copied over this one, with another file of that name."""
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for value in (f"{tmp_path}/mine/r.py", f"/other.py {tmp_path}/link/r.py"):
        own_runs.record(tmp_path / "mine", {"remote_rm_url": value})
        with pytest.raises(own_runs.UserError):
            own_runs.refuse_others(tmp_path / "mine", {"remote_rm_url": value})


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        *(None, "{", "[]", '{"asked": 7}', '{"asked": {"script": 7, "sources": {}, "words": []}}'),
        '{"asked": {"script": [7], "sources": {"seed": 1}, "words": ["--seed", "7"]}}',
        *(f'{{"asked": {{"script": [], "sources": {{}}, "words": {words}}}}}' for words in ("7", "[7]", '["--held"]')),
    ],
)
def test_what_no_launcher_wrote_is_refused_without_a_traceback(checkout, tmp_path, text: str | None) -> None:
    """Nor is a pipe in its place waited for."""
    folder = Path(write_run(tmp_path / "run", seed="7", pretrain="/none"))
    (folder / "config.json").unlink()
    if text is None:
        os.mkfifo(folder / "config.json")
    else:
        (folder / "config.json").write_text(text)
    assert launch("--dry-run", "--resume", str(folder)).returncode == 2
