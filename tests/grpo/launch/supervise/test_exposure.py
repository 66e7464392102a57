"""Paths that other users may change are reported before a run. Only its user can read or write a run's files."""

import stat
from pathlib import Path

import pytest

from grpo.launch import __main__ as launcher
from grpo.launch import judge, preflight
from grpo.launch.config import resolve
from grpo.launch.supervise import exposure


def test_what_everybody_may_write_to_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "shared" / "data"
    inner.mkdir(parents=True)
    file, link = inner / "train.jsonl", tmp_path / "link"
    file.touch()
    link.symlink_to(inner)
    assert exposure.open_to([file]) == []
    for path in (inner.parent, inner, file):
        before = path.stat().st_mode
        path.chmod(0o777)
        assert exposure.open_to([file]) == [path] and path in exposure.open_to([link / "train.jsonl"])
        path.chmod(before)
    inner.chmod(0o777)
    assert exposure.open_to([inner / "new" / "run"]) == [inner], "a missing one is judged by its parent"
    inner.chmod(0o777 | stat.S_ISVTX)
    assert exposure.open_to([inner / "run"]) == [], "the sticky bit protects what is in a folder"


def test_every_location_of_a_run_is_checked(setting, tmp_path: Path) -> None:
    config = resolve(setting.make_words(), setting.run_dir)
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
    words = ["check", "--stand-in", "--run-dir", str(setting.run_dir), "--", *setting.make_words()]
    assert launcher.main(words) == 0 and "every user can replace" not in capsys.readouterr().out
    setting.run_dir.parent.chmod(0o777)
    assert launcher.main(words) == 0
    output = capsys.readouterr().out
    assert f"every user can replace files in {setting.run_dir.parent}" in output and "ready" in output
