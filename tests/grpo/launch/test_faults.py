"""Faults of machine and user that cost a run little or nothing. The launcher is real."""

import time

import pytest

from grpo.run.run_files import saved_steps

from .small_disk import SmallDisk

pytestmark = pytest.mark.timeout(600)


def test_a_clock_that_jumps_changes_nothing(start) -> None:
    day = 86_400
    run = start(5, [{"phase": "generate", "jump": {"2": day, "4": -day}}], hang_minutes=1)
    started = time.monotonic()
    output = "\n".join(run.finish())
    assert run.launcher.returncode == 0, output
    assert run.read_learned() == [(step, step / 10) for step in range(1, 6)]
    times = [row["time"] for row in run.read_rows("metrics.jsonl")]
    jumps = times[1] - times[0] - day, times[3] - times[2] + 2 * day
    assert max(map(abs, jumps)) < time.monotonic() - started + 1, "the clock did not jump"
    assert "no progress" not in output and "restart" not in output


def test_a_line_of_metrics_that_is_cut_is_written_again(start) -> None:
    run = start(5, [{"step": 3, "phase": "generate", "target": "engine", "send": "SIGKILL", "cut": True}])
    output = "\n".join(run.finish())
    assert run.launcher.returncode == 0, output
    assert run.read_learned() == [(step, step / 10) for step in range(1, 6)]
    assert "continuing after step" in output


def test_a_disk_that_fills_while_the_run_goes_on_is_named(start, setting) -> None:
    try:
        disk = SmallDisk(setting.run_dir)
    except PermissionError as error:
        pytest.skip(str(error))
    try:
        run = start(30, [], restarts=0)
        run.wait_for_step(2)
        assert disk.fill()
        output = "\n".join(run.finish())
        assert run.launcher.returncode == 1, output
        assert "disk of checkpoints is full" in output
        steps = saved_steps(run.folder / "checkpoints")
        assert len(steps) >= 1, "earlier checkpoints stay"
    finally:
        disk.close()
