"""A run that loses a process goes on by itself. The launcher is real, and so are the deaths.

Only whole launchers show which process a signal reaches between two attempts; the trainer is a stand-in.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.launch import attempt
from tests.grpo.launch.faulty_run import Run
from tests.supervised import read_command_line, wait_until

pytestmark = pytest.mark.timeout(600)

ENGINE_DIES = {"step": 3, "phase": "generate", "target": "engine", "send": "SIGKILL"}
TRAINER_DIES = {"step": 4, "phase": "train", "target": "trainer", "send": "SIGSEGV"}


def test_a_run_that_loses_its_engine_and_then_its_driver_makes_all_its_steps(start) -> None:
    run = start(5, [ENGINE_DIES, TRAINER_DIES])
    output = run.finish()
    text = "\n".join(output)
    assert run.launcher.returncode == 0, text
    assert run.read_learned() == [(step, step / 10) for step in range(1, 6)]
    assert [row["step"] for row in run.read_rows("resumes.jsonl")] == [2, 3]
    first, second, last = run.read_rows("ends.jsonl")
    assert first["cause"].startswith("RuntimeError: Connection closed") and first["restart"]
    assert (first["step"], first["saved"]) == (2, 2)
    assert second["cause"] == "the driver was killed by SIGSEGV" and second["restart"] and last["code"] == 0
    assert "first error, at step 2: RuntimeError: Connection closed" in text
    assert text.count(" s (1 of 3)") == 2, "a new checkpoint sets the count back"


def test_the_same_error_after_the_same_step_ends_the_run(start) -> None:
    run = start(5, [ENGINE_DIES] * 3)
    output = run.finish()
    assert run.launcher.returncode == 1
    assert "not restarting: the same error" in "\n".join(output)
    assert output[-1].startswith("not finished ./train_grpo.sh --resume") and "after step 2" in output[-1]
    assert [row["restart"] for row in run.read_rows("ends.jsonl")] == [True, False]


@pytest.fixture
def start_lacking_run(start, setting, monkeypatch) -> Callable[..., tuple[Run, Path]]:
    """Start a run whose engine dies, and whose training data is missing when it restarts."""

    def begin(room: float) -> tuple[Run, Path]:
        monkeypatch.setenv("FAULTY_ROOM", str(room))
        run, problems = start(5, [ENGINE_DIES]), setting.folder / "train.jsonl"
        run.wait_for_step(1)
        return run, problems.rename(problems.with_suffix(".away"))

    return begin


def test_a_restart_waits_for_what_it_lacks(start_lacking_run) -> None:
    run, away = start_lacking_run(room=600)
    assert any(line.startswith("waiting      ") and "train.jsonl" in line for line in run.launcher.stdout)
    away.rename(away.with_suffix(".jsonl"))
    output = run.finish()
    assert run.launcher.returncode == 0, output
    assert run.read_learned() == [(step, step / 10) for step in range(1, 6)]


@pytest.mark.parametrize("fault", ["train.jsonl is missing", "train.jsonl is another", "config.json is damaged"])
def test_a_restart_that_finds_a_problem_ends_the_run(start, start_lacking_run, setting, fault: str) -> None:
    name, _, how = fault.partition(" is ")
    if how == "missing":
        run, _ = start_lacking_run(room=1)
    else:
        run = start(5, [ENGINE_DIES])
        run.wait_for_step(1)
        file = (setting.folder if name == "train.jsonl" else run.folder) / name
        file.write_text(file.read_text() * 2)
    output = run.finish()
    assert run.launcher.returncode == 2, output
    assert any(line.startswith("refused") for line in output)
    assert output[-1].startswith("not finished ./train_grpo.sh --resume")
    first, last = run.read_rows("ends.jsonl")
    assert first["restart"] and "restart" not in last and name in last["cause"]


def is_restarting(run: Run) -> bool:
    return any("--held" in read_command_line(pid) for pid in run.list_launchers())


@pytest.mark.parametrize("when", ["between two attempts", "a launcher starts", "a restart waits"])
def test_a_signal_around_a_restart_ends_the_run(start, start_lacking_run, when: str) -> None:
    run = start_lacking_run(room=600)[0] if when == "a restart waits" else start(5, [ENGINE_DIES])
    if when == "between two attempts":
        wait_until(lambda: bool(run.read_rows("ends.jsonl")), "the engine did not die")
    elif when == "a launcher starts":
        wait_until(lambda: is_restarting(run), "there was no restart")
    else:
        assert any(line.startswith("waiting      ") for line in run.launcher.stdout)
    number = signal.SIGINT if when == "between two attempts" else signal.SIGTERM
    os.kill(run.launcher.pid, number)
    output = run.finish()
    assert run.launcher.returncode == 128 + number, output
    assert output[-1].startswith("not finished ./train_grpo.sh --resume") and "after step 2" in output[-1]
    assert run.read_rows("ends.jsonl")[-1]["cause"] in ("Ctrl-C", "SIGTERM")
    assert [row.get("restart") for row in run.read_rows("ends.jsonl")] == [True, None]


def test_a_run_whose_engine_is_suspended_restarts(start) -> None:
    run = start(4, [ENGINE_DIES | {"send": "SIGSTOP"}], hang_minutes=0.2)
    output = run.finish()
    text = "\n".join(output)
    assert run.launcher.returncode == 0, text
    assert run.read_learned() == [(step, step / 10) for step in range(1, 5)]
    assert "no progress: step 3: generate" in text
    first, _ = run.read_rows("ends.jsonl")
    assert first["restart"] and first["cause"].startswith("no progress: step 3: generate for 0.")


def test_a_run_whose_guard_or_launcher_is_killed_does_not_restart(start) -> None:
    run = start(4, [{"at": 4}])
    run.wait_for_step(3)
    os.kill(run.launcher.pid, signal.SIGKILL)
    output = run.finish()
    assert output[-1].endswith("continues after step 3")
    assert [row.get("restart") for row in run.read_rows("ends.jsonl")] == [None]


@pytest.mark.parametrize(
    ("number", "fault", "said"),
    [
        (signal.SIGINT, {}, "saved"),
        (signal.SIGTERM, {"is_deaf": True}, "not saved: timed out"),
        (signal.SIGTERM, {"fails": "OSError: a full disk"}, "not saved: OSError: a full disk"),
    ],
)
def test_a_signal_saves_before_it_ends_the_run_or_says_why_not(start, number: int, fault: dict, said: str) -> None:
    run = start(4, [{"at": 4, **fault}], save_steps=2, eval_steps=2, sigterm_seconds=2 if fault.get("is_deaf") else 400)
    run.wait_for_step(3)
    os.kill(run.launcher.pid, number)
    output = run.finish()
    assert run.launcher.returncode == 128 + number and said in output, output
    saved = sorted(path.name for path in (run.folder / "checkpoints").glob("step_*"))
    assert saved == (["step_2"] if fault else ["step_2", "step_3"])
    assert output[-1].endswith(f"continues after step {2 if fault else 3}")
    assert not (run.folder / ".save-request").exists() and "restart" not in run.read_rows("ends.jsonl")[-1]
    assert run.read_rows("ends.jsonl")[-1]["cause"] == ("SIGTERM" if fault else "Ctrl-C")


def test_a_second_ctrl_c_ends_at_once(start) -> None:
    run = start(4, [{"at": 4, "is_deaf": True}], sigterm_seconds=400)
    run.wait_for_step(3)
    os.kill(run.launcher.pid, signal.SIGINT)
    wait_until((run.folder / ".save-request").exists, "nobody asked for a checkpoint")
    os.kill(run.launcher.pid, signal.SIGINT)
    output = run.finish()
    assert run.launcher.returncode == 130 and "not saved: timed out" not in output


def test_the_parity_gate_ends_the_run_with_its_reason_and_no_restart(start) -> None:
    lost = {"step": 3, "phase": "train", "kind": "PolicyMismatch", "raise": "engine 1 differs: look at it"}
    run = start(4, [lost], save_steps=2, eval_steps=2)
    output = run.finish()
    assert run.launcher.returncode == 3 and "engine 1 differs" in "\n".join(output), output
    assert output[-1].endswith("continues after step 2")
    assert [row["code"] for row in run.read_rows("ends.jsonl")] == [3], "it is no crash"


def make_end(cause: str = "an engine died (pid 7)", step: int = 4, saved: int = 3, restart: bool = True) -> dict:
    return {"cause": cause, "step": step, "saved": saved, "restart": restart}


TAKEN = "an engine did not start: RuntimeError: two groups of ranks chose port 20001 as their name: start again"
IN_USE = "OSError: [Errno 98] Address already in use"
AFTER_OTHERS = [make_end(step=step) for step in range(4, 8)]


@pytest.mark.parametrize(
    ("ends", "limit", "has_progressed", "wait"),
    [
        ([make_end()], 3, False, None),  # before its first step
        ([make_end()], 0, True, None),
        ([make_end()], 3, True, 10.0),
        # what fails by chance at the start is tried again, once
        *(([make_end(cause, step=0, saved=0)], 3, False, 10.0) for cause in (TAKEN, IN_USE)),
        *(([make_end(cause, step=0, saved=0)] * 2, 3, False, None) for cause in (TAKEN, IN_USE)),
        # the waits grow until the restarts are used up, and a new checkpoint sets the count back
        *((AFTER_OTHERS[: count + 1], 3, True, wait) for count, wait in enumerate((10.0, 30.0, 90.0, None))),
        ([*AFTER_OTHERS, make_end(step=9, saved=8)], 3, True, 10.0),
        # process ids do not make an error another one
        ([make_end(), make_end("an engine died (pid 8)")], 3, True, None),
        ([make_end(), make_end("an actor rank died (pid 8)")], 3, True, 30.0),
        # a resume by hand begins anew
        ([make_end(), make_end(restart=False), make_end()], 3, False, None),
        ([make_end(), make_end(restart=False), make_end()], 3, True, 10.0),
    ],
)
def test_whether_and_when_a_run_goes_on(ends: list[dict], limit: int, has_progressed: bool, wait: float | None) -> None:
    assert attempt.decide(ends, limit, has_progressed)[0] == wait
