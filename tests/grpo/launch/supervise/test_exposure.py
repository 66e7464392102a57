"""What other users may change is named before a run; what a run writes is its user's alone."""

import stat
import sys
from pathlib import Path

import pytest

from grpo.launch import __main__ as launcher
from grpo.launch import judge, preflight
from grpo.launch.config import resolve
from grpo.launch.supervise import exposure


def test_a_folder_that_everybody_may_write_to_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "shared" / "data"
    inner.mkdir(parents=True)
    file = inner / "train.jsonl"
    file.touch()
    assert exposure.open_to([file]) == []
    for path in (inner.parent, inner, file):
        before = path.stat().st_mode
        path.chmod(0o777)
        assert exposure.open_to([file]) == [path]
        path.chmod(before)


def test_where_a_link_leads_is_looked_at(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoints").symlink_to(shared)
    shared.chmod(0o777)
    assert shared in exposure.open_to([tmp_path / "mine" / "checkpoints"])


def test_the_sticky_bit_protects_what_is_in_a_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    assert exposure.open_to([tmp_path / "run"]) == []


def test_what_does_not_exist_yet_is_judged_by_its_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert exposure.open_to([tmp_path / "new" / "run"]) == [tmp_path]


def test_every_place_of_a_run_is_looked_at(setting, tmp_path: Path) -> None:
    config = resolve(setting.words(), setting.run_dir)
    assert exposure.warnings(config, setting.run_dir) == []
    for flag in ("ckpt_path", "metrics_dir", "prompt_data", "pretrain", "remote_rm_url", "agent_func_path"):
        shared = tmp_path / flag
        shared.mkdir()
        shared.chmod(0o777)
        setattr(config.args, flag, str(shared / "here"))
    named = " ".join(exposure.warnings(config, setting.run_dir))
    for flag in ("ckpt_path", "metrics_dir", "prompt_data", "pretrain", "remote_rm_url"):
        assert f"every user can replace what is in {tmp_path / flag}: chmod o-w" in named


def test_the_check_says_it_and_is_ready(setting, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(preflight, "problems", lambda *args, **others: [])
    monkeypatch.setattr(judge, "check", lambda *args: [])
    words = ["launch", "check", "--stand-in", "--run-dir", str(setting.run_dir), "--", *setting.words()]
    monkeypatch.setattr(sys, "argv", words)
    assert launcher.main() == 0 and "WARNING" not in capsys.readouterr().out
    setting.run_dir.parent.chmod(0o777)
    assert launcher.main() == 0
    output = capsys.readouterr().out
    assert f"every user can replace what is in {setting.run_dir.parent}" in output and "ready" in output
