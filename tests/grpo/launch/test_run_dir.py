"""Files written before a run starts, without any secret."""

import json
import subprocess
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
    words = done.stdout.split()
    assert words[0] == "--" and words[-2:] == ["--steps", "3"] and "--ckpt_path" not in words
    for flag, value in (("--lora_rank", "4"), ("--metrics_dir", "/disk"), ("--zero_stage", "3")):
        assert words[words.index(flag) + 1] == value


def test_the_judges_settings_are_recorded_without_the_address_of_its_stand_in(setting, monkeypatch) -> None:
    given = {"JUDGE_MODELS": "a b", "JUDGE_BASE_URL": "https://gateway.example", "JUDGE_RPM": "1"}
    for name, value in (given | {"JUDGE_STAND_IN": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(f"GRPO_{name}", value)
    write(setting)
    assert json.loads((setting.run_dir / "config.json").read_text())["judge"] == given
    assert not any("127.0.0.1" in path.read_text() for path in setting.run_dir.rglob("*") if path.is_file())
