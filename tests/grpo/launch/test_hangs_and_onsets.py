"""What the launcher notices in a run: how long a phase may take (test_restarts.py stops a real process), and onsets."""

import json
import time
from pathlib import Path

import pytest

from grpo.launch.hangs_and_onsets import FIRST_TIMES, TIMES_USUAL, HangWatch, Onsets
from grpo.run.progress import Progress
from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path, tmp_path)


def start_watch(files: RunFiles, minutes: float) -> HangWatch:
    progress = Progress(files, 10)
    progress.poll()
    return HangWatch(files, progress, minutes)


def log_steps(files: RunFiles, *generate: float) -> None:
    rows = [{"step": step, "seconds": {"generate": seconds}} for step, seconds in enumerate(generate, 1)]
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("minutes", "times", "limit"),
    [
        (2.0, (), FIRST_TIMES * 120),
        (2.0, (1.0, 2.0, 3.0), 120.0),
        (2.0, (100.0, 40.0, 60.0), TIMES_USUAL * 60.0),
        (0, (1.0,), None),
    ],
)
def test_a_phase_may_take_several_times_as_long_as_usual(files, monkeypatch, minutes, times, limit) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log_steps(files, *times)
    seen, log = start_watch(files, minutes), RunLog(str(files.folder))
    log.note_phase("generate", 4)
    assert seen.hang() == ""
    now += limit or 1e6
    assert seen.hang() == ""
    now += 1
    assert seen.hang().startswith("no progress: step 4: generate for") == (limit is not None)
    log.note_phase("train", 4)
    assert seen.hang() == "", "the next phase has begun"


def write_cut_responses(folder: Path, first: int, last: int) -> None:
    """Log steps of a run whose responses are nearly all cut from step 30 on."""
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(first, last + 1):
            row = {"step": step, "actor_lr": 1e-6, "truncated": 0.05 if step < 30 else 0.97, "correct": 0.5}
            file.write(json.dumps(row) + "\n")


def test_an_onset_is_printed_once_and_not_again_after_a_resume(tmp_path: Path, files) -> None:
    progress = Progress(files, 80)
    news, told = Onsets(progress, {}), []
    for step in range(1, 61):
        write_cut_responses(tmp_path, step, step)
        progress.poll()
        told += news.new_lines()
        assert news.new_lines() == []
    [line] = [line for line in told if "truncat" in line]
    assert line.startswith("! ") and "step 30" in line
    progress = Progress(files, 80)
    progress.skip()
    news = Onsets(progress, {})
    write_cut_responses(tmp_path, 61, 62)
    progress.poll()
    assert not [line for line in news.new_lines() if "truncat" in line]
