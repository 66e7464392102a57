"""Paths that other users may change are reported before a run. Only its user can read or write a run's files."""

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


def test_targets_of_links_are_checked(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "checkpoints").symlink_to(shared)
    shared.chmod(0o777)
    assert shared in exposure.open_to([tmp_path / "mine" / "checkpoints"])


def test_the_sticky_bit_protects_what_is_in_a_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    assert exposure.open_to([tmp_path / "run"]) == []


def test_missing_path_is_judged_by_its_parent_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert exposure.open_to([tmp_path / "new" / "run"]) == [tmp_path]


def test_every_location_of_a_run_is_checked(setting, tmp_path: Path) -> None:
    config = resolve(setting.words(), setting.run_dir)
    assert exposure.warnings(config, setting.run_dir) == []
    for flag in ("ckpt_path", "metrics_dir", "prompt_data", "pretrain", "remote_rm_url", "agent_func_path"):
        shared = tmp_path / flag
        shared.mkdir()
        shared.chmod(0o777)
        setattr(config.args, flag, str(shared / "here"))
    named = " ".join(exposure.warnings(config, setting.run_dir))
    for flag in ("ckpt_path", "metrics_dir", "prompt_data", "pretrain", "remote_rm_url"):
        assert f"every user can replace files in {tmp_path / flag}; run: chmod o-w" in named


def test_check_warns_and_still_passes(setting, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(preflight, "problems", lambda *args, **others: [])
    monkeypatch.setattr(judge, "check", lambda *args: [])
    words = ["launch", "check", "--stand-in", "--run-dir", str(setting.run_dir), "--", *setting.words()]
    monkeypatch.setattr(sys, "argv", words)
    assert launcher.main() == 0 and "every user can replace" not in capsys.readouterr().out
    setting.run_dir.parent.chmod(0o777)
    assert launcher.main() == 0
    output = capsys.readouterr().out
    assert f"every user can replace files in {setting.run_dir.parent}" in output and "ready" in output
