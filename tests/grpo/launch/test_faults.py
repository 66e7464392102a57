"""Faults of the disk that cost a run little or nothing. The launcher is real."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.run.run_files import saved_steps

pytestmark = pytest.mark.timeout(600)
SIZE = 3 * 10**9  # the launcher wants room for logs; only what is written takes memory
SPARE = 4_096  # left on a full disk


def test_a_line_of_metrics_that_is_cut_is_written_again(start) -> None:
    run = start(5, [{"step": 3, "phase": "generate", "target": "engine", "send": "SIGKILL", "cut": True}])
    output = "\n".join(run.finish())
    assert run.launcher.returncode == 0, output
    assert run.read_learned() == [(step, step / 10) for step in range(1, 6)]


def mount(folder: Path, options: str) -> int:
    """Mount a disk in memory, which can be full without taking memory."""
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True).returncode


@pytest.fixture
def disk(setting) -> Iterator[Path]:
    """The run directory, as a disk of its own."""
    setting.run_dir.mkdir()
    if mount(setting.run_dir, f"size={SIZE},mode=700"):
        pytest.skip("only root may mount a disk")
    yield setting.run_dir
    subprocess.run(["umount", "--lazy", str(setting.run_dir)], check=True)


def test_a_disk_that_fills_while_the_run_goes_on_is_named(disk, start) -> None:
    run = start(30, [], restarts=0)
    run.wait_for_step(2)
    assert not mount(disk, f"remount,size={shutil.disk_usage(disk).used + SPARE}")
    output = "\n".join(run.finish())
    assert run.launcher.returncode == 1 and "disk of checkpoints is full" in output, output
    assert saved_steps(disk / "checkpoints"), "earlier checkpoints stay"
