"""How long a phase of a run may take. test_restarts.py stops a real process."""

import json
import time
from pathlib import Path

import pytest

from grpo.launch.watch import FIRST_TIMES, TIMES_USUAL, HangWatch
from grpo.run.progress import Progress
from grpo.run.run_files import RunFiles
from grpo.run.run_log import RunLog

MINUTES = 2.0


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path, tmp_path)


def watch(files: RunFiles, minutes: float = MINUTES) -> HangWatch:
    progress = Progress(files, 10)
    progress.poll()
    return HangWatch(files, progress, minutes)


def log_steps(files: RunFiles, *generate: float) -> None:
    rows = [{"step": step, "seconds": {"generate": seconds}} for step, seconds in enumerate(generate, 1)]
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("times", "limit"),
    [((), FIRST_TIMES * 120), ((1.0, 2.0, 3.0), 120.0), ((100.0, 40.0, 60.0), TIMES_USUAL * 60.0)],
)
def test_a_phase_may_take_several_times_as_long_as_usual(files, monkeypatch, times: tuple, limit: float) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log_steps(files, *times)
    seen = watch(files)
    RunLog(str(files.folder)).note_phase("generate", 4)
    assert seen.hang() == ""
    now += limit
    assert seen.hang() == ""
    now += 1
    assert seen.hang().startswith("no progress: step 4: generate for")


def test_a_phase_that_lasts_is_a_hang_until_the_next_one_begins(files) -> None:
    log_steps(files, 1e-3)
    log, seen = RunLog(str(files.folder)), watch(files, minutes=1e-3)
    with log.phase("generate"):
        pass
    assert seen.hang() == ""
    time.sleep(0.1)
    hang = seen.hang()
    assert hang.startswith("no progress: step 2: generate for")
    with log.phase("train"):
        pass
    assert seen.hang() == ""


def test_without_a_limit_nothing_hangs(files) -> None:
    assert watch(files, minutes=0).hang() == ""
