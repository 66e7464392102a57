"""Files written before a run starts, without any secret."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.flags.parser import Asked
from grpo.launch import run_dir
from grpo.launch.judge import RunJudge
from grpo.launch.plan import make_plan
from grpo.stack.checkout import CHECKOUT

STATUS = {"state": "applied", "applied": 3, "total": 3, "digest": "d1", "expected_digest": "d1"}
SECRETS = {
    "GEMINI_API_KEY": "gemini-0123456789",
    "WANDB_API_KEY": "wandb-0123456789",
    "HF_TOKEN": "hf_0123456789",
    "MY_PASSWORD": "hunter2-hunter2",
}


def write(setting, **changes: object):
    config = setting.make_config(**changes)
    run_dir.write(setting.run_dir, Asked({}), config, make_plan(config), STATUS, RunJudge(None, False))
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


def test_the_command_is_a_program_that_starts_the_launcher(setting, tmp_path: Path) -> None:
    (launcher := tmp_path / "scripts" / "launch.sh").parent.mkdir()
    launcher.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    asked = Asked({"lora_rank": 4, "ckpt_path": str(setting.run_dir / "here"), "metrics_dir": "/disk"})
    config = setting.make_config()
    run_dir.write(setting.run_dir, asked, config, make_plan(config), STATUS, RunJudge(None, False))
    command = setting.run_dir / "command.sh"
    command.write_text(command.read_text().replace(str(CHECKOUT), str(tmp_path)))
    done = subprocess.run([command, "--steps", "3"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--", "--lora_rank", "4", "--metrics_dir", "/disk", "--steps", "3"]


def test_the_judges_settings_are_recorded_without_a_password(setting, monkeypatch) -> None:
    given = {"JUDGE_MODELS": "a b", "JUDGE_BASE_URL": "https://gateway.example", "JUDGE_RPM": "1"}
    for name, value in (given | {"JUDGE_STAND_IN": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    config = setting.make_config()
    run_dir.write(setting.run_dir, Asked({}), config, make_plan(config), STATUS, RunJudge(None, True, "--no-judge"))
    recorded = json.loads((setting.run_dir / "config.json").read_text())
    assert recorded["judge_off"] == "--no-judge" and recorded["judge"] == given and recorded["judge_is_stand_in"]
    written = [path.read_text() for path in setting.run_dir.rglob("*") if path.is_file()]
    assert len(written) >= 4 and not any("127.0.0.1" in text for text in written)
