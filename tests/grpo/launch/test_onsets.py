"""A running run reports the onset of a fault, once."""

import json
import logging
from pathlib import Path

import pytest

from grpo.diagnosis import diagnose
from grpo.launch import watch
from grpo.launch.watch import Onsets
from grpo.run.progress import Progress
from grpo.run.run_files import RunFiles


def write(folder: Path, first: int, last: int) -> None:
    """Steps of a run whose responses are nearly all cut from step 30 on."""
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(first, last + 1):
            row = {"step": step, "actor_lr": 1e-6, "truncated": 0.05 if step < 30 else 0.97, "correct": 0.5}
            file.write(json.dumps(row) + "\n")


def test_onset_is_printed_once(tmp_path: Path) -> None:
    progress = Progress(RunFiles(tmp_path, tmp_path), 80)
    news = Onsets(progress, {})
    told = []
    for step in range(1, 81):
        write(tmp_path, step, step)
        progress.poll()
        told += news.new_lines()
        assert news.new_lines() == []
    [line] = [line for line in told if "truncat" in line]
    assert line.startswith("! ") and "step 30" in line


def test_resumed_run_does_not_repeat_an_onset(tmp_path: Path) -> None:
    write(tmp_path, 1, 60)
    progress = Progress(RunFiles(tmp_path, tmp_path), 80)
    progress.skip()
    news = Onsets(progress, {})
    write(tmp_path, 61, 62)
    progress.poll()
    assert not [line for line in news.new_lines() if "truncat" in line]


def test_failing_rule_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> list:
        raise ZeroDivisionError("a rule")

    monkeypatch.setattr(diagnose.Monitor, "new_onsets", fail)
    write(tmp_path, 1, 3)
    progress = Progress(RunFiles(tmp_path, tmp_path), 80)
    progress.poll()
    with caplog.at_level(logging.WARNING, logger=watch.__name__):
        assert Onsets(progress, {}).new_lines() == []
    assert "the diagnosis failed after step 3: a rule" in caplog.text
