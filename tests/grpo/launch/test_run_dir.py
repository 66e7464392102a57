"""Files written before a run starts, without any secret."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.launch import run_dir
from grpo.launch.config import resolve
from grpo.launch.plan import make_plan

STATUS = {"state": "applied", "applied": 3, "total": 3, "digest": "d1", "expected_digest": "d1"}
SECRETS = {
    "GEMINI_API_KEY": "gemini-0123456789",
    "WANDB_API_KEY": "wandb-0123456789",
    "HF_TOKEN": "hf_0123456789",
    "MY_PASSWORD": "hunter2-hunter2",
}


def write(setting, **changes: object):
    config = setting.make_config(**changes)
    run_dir.write(setting.run_dir, "test", config, make_plan(config), STATUS)
    return config


def test_flags_patches_and_environment_are_recorded(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    folders = [setting.folder / "disk" / name for name in "ab"]
    config = write(setting, ckpt_path=folders[0], metrics_dir=folders[1])
    assert all(folder.is_dir() for folder in folders)
    written = json.loads((setting.run_dir / "config.json").read_text())
    assert written["flags"].keys() == vars(config.args).keys()
    assert written["flags"]["lora_rank"] == written["given"]["lora_rank"] == 4 and written["flags"]["gamma"] == 1
    assert written["plan"]["steps"] == 6 and written["stack"] == "cpu"
    assert json.loads((setting.run_dir / "patches.json").read_text()) == STATUS
    environment = json.loads((setting.run_dir / "env.json").read_text())
    assert environment["python"] == sys.version.split()[0]
    assert environment["packages"]["ray"] == "2.55.1"
    assert environment["hardware"]["cpus"] == len(os.sched_getaffinity(0))
    assert environment["variables"]["OMP_NUM_THREADS"] == "2"


def test_no_secret_is_in_the_run_directory(setting, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    # This also holds if a recorded variable contains one.
    monkeypatch.setenv("HF_HOME", f"/tmp/{SECRETS['HF_TOKEN']}")
    write(setting, use_wandb=1)
    files = [path for path in setting.run_dir.rglob("*") if path.is_file()]
    assert len(files) == 4
    for path in files:
        text = path.read_text()
        assert not [name for name, value in SECRETS.items() if value in text], path
    assert "<HF_TOKEN>" in (setting.run_dir / "env.json").read_text()


def test_the_command_starts_the_same_configuration_elsewhere(setting, tmp_path: Path) -> None:
    config = write(setting, ckpt_path=tmp_path / "disk")
    # A stand-in for python that shows how it was called.
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    command = (setting.run_dir / "command.sh").read_text()
    kept = "\n".join(line for line in command.splitlines() if not line.startswith("source "))
    done = subprocess.run(
        ["bash", "-c", kept, "command.sh", str(tmp_path / "again")],
        env={"PATH": f"{fake.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    options, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    assert options == ["-P", "-m", "grpo.launch", "run", "--name", "test", "--run-dir", str(tmp_path / "again")]
    again = resolve(flags, tmp_path / "again")
    different = {name for name in vars(config.args) if config.values[name] != again.values[name]}
    assert different - {"wandb_run_name"} == {"run_dir", "metrics_dir", "save_path"}
    assert os.access(setting.run_dir / "command.sh", os.X_OK)


def test_the_judges_settings_are_recorded_and_repeated_without_a_password(setting, monkeypatch) -> None:
    given = {"JUDGE_MODELS": "a b", "JUDGE_BASE_URL": "https://gateway.example", "JUDGE_RPM": "1"}
    for name, value in (given | {"JUDGE_STAND_IN": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    config = setting.make_config()
    run_dir.write(setting.run_dir, "test", config, make_plan(config), STATUS, ["--stand-in"], "JUDGE is 0")
    recorded = json.loads((setting.run_dir / "config.json").read_text())
    assert recorded["judge_off"] == "JUDGE is 0" and recorded["judge"] == given
    command = (setting.run_dir / "command.sh").read_text()
    for line in ("export GRPO_JUDGE_MODELS='a b'", "export GRPO_JUDGE_BASE_URL=https://gateway.example"):
        assert f"{line}\n" in command
    assert "--name test --stand-in" in command and "127.0.0.1" not in command
    written = [path.read_text() for path in setting.run_dir.rglob("*") if path.is_file()]
    assert len(written) >= 4 and not any("s3cret" in text or "proxy.example" in text for text in written)
