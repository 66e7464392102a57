"""Who holds a run's directory, and how the end of a run is recorded."""

import os
import resource
from collections.abc import Callable

import pytest

from grpo.checkpoint import adapter_files
from grpo.launch import __main__ as launch
from grpo.launch import attempt
from grpo.launch.attempt import REFUSED
from grpo.launch.supervise.supervisor import End, Job
from grpo.run import run_state
from grpo.run.run_files import LOSSY, RunFiles
from grpo.run.run_log import RunLog

from .stopped_run import start


@pytest.fixture
def run_launcher(setting, monkeypatch) -> Callable[..., int]:
    """Run the launcher around a stand-in for the supervisor; options of the launcher and other flags may follow."""

    def run_launcher(supervise: Callable, *options: str, **flags: object) -> int:
        words = [*(options or ("--run-dir", str(setting.run_dir))), *setting.make_launch_words(**flags)]
        monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
        monkeypatch.setattr(launch.preflight, "patch_status", lambda: {"digest": "d1"})
        monkeypatch.setattr(attempt, "supervise", supervise)
        held = []
        with monkeypatch.context() as patch:
            patch.setattr(RunFiles, "hold", lambda files, hold=RunFiles.hold: held.append(hold(files)) or held[-1])
            code = launch.main(words)
        os.close(held[0])  # as the end of the process does
        return code

    return run_launcher


def test_second_start_in_a_directory_is_rejected(setting, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launch.preflight, "problems", lambda *_, **__: [])
    setting.run_dir.mkdir()
    held = RunFiles(setting.run_dir).hold()
    assert launch.main(["--run-dir", str(setting.run_dir), *setting.make_launch_words()]) == REFUSED
    assert "still running" in capsys.readouterr().err
    os.close(held)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (130, "stopped"), (1, "crashed")])
def test_finished_run_records_how_it_ended(setting, run_launcher, code, state) -> None:
    def supervise(_: Job) -> End:
        assert run_state.Run(setting.run_dir).state == "running"
        return End(code)

    assert run_launcher(supervise) == code
    run = run_state.Run(setting.run_dir)
    assert (run.state, run.code) == (state, code)


def test_a_run_whose_metrics_were_lost_says_so_at_once_and_is_not_done(setting, run_launcher, capsys) -> None:
    """In step 2, metrics.jsonl reaches the largest size that a file may have here."""
    shown = []

    def supervise(job: Job) -> End:
        log = RunLog(str(setting.run_dir))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            for step in (1, 2):
                log.write_step(step, {"reward": 0.5})
                shown.append("\n".join(job.progress()))
                with (setting.run_dir / "metrics.jsonl").open("a") as file:
                    file.write("\n" * (2**20 - file.tell()))
                resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert job.watch and job.watch.has_new_steps(), "a SIGTERM saves"
        return End(0)

    assert run_launcher(supervise) == LOSSY
    lost = f"1 write failed since step 2 (last: {setting.run_dir}/metrics.jsonl: File too large)"
    assert shown[0].startswith("step 1") and lost in shown[1] and lost in capsys.readouterr().out
    run = run_state.Run(setting.run_dir)
    assert (run.state, run.code) == ("finished", LOSSY)


def test_a_finished_run_that_is_resumed_says_that_it_is_finished(setting, save, run_launcher, capsys) -> None:
    start(setting, max_steps=4)
    save(4)

    def resume_run() -> int:
        return run_launcher(lambda _: End(0), "--resume", str(setting.run_dir), max_steps=4)

    assert resume_run() == 0
    files = RunFiles(setting.run_dir)
    assert files.resumes.exists(), "its final adapter was missing"
    files.final.mkdir()
    (files.final / adapter_files.CONFIG).touch()
    before = files.ends.read_text(), files.resumes.read_text()
    capsys.readouterr()
    assert resume_run() == 0
    assert (files.ends.read_text(), files.resumes.read_text()) == before
    assert capsys.readouterr().out.startswith("finished: nothing was started")
