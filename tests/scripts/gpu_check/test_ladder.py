"""The ladder itself: verdicts, processes of their own, the report, the command."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo.stack import machine
from grpo.stack.problem import UserError
from scripts.gpu_check import __main__ as command
from scripts.gpu_check import kept, rung, seen
from scripts.gpu_check.ladder import LADDER, climb
from scripts.gpu_check.rung import FAILED, PASSED, SKIPPED, Passed, Rung, Skipped, run_apart, run_here

NOTHING = {"versions": {}, "gpus": [], "fault": ""}
TOOLKIT = Rung("toolkit", "machine:toolkit", "install a compiler", gpus=0)


def test_every_rung_names_a_function_a_remedy_and_is_named_once() -> None:
    assert len({each.name for each in LADDER}) == len(LADDER) > 12
    for each in LADDER:
        module, function = each.check.split(":")
        source = (Path(rung.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
        assert f"def {function}(" in source and each.remedy


@pytest.mark.parametrize(
    ("gpus", "packages", "found", "reason"),
    [
        (1, (), 0, "needs a GPU; PyTorch finds none"),
        (2, (), 1, "needs 2 GPUs; PyTorch finds 1"),
        (1, ("json", "no_such_package"), 1, "needs no_such_package, not installed"),
        (1, ("json",), 2, ""),
    ],
)
def test_a_rung_says_what_is_missing(gpus: int, packages: tuple[str, ...], found: int, reason: str) -> None:
    assert Rung("one", "machine:driver", "", gpus, packages).find_lack(found) == reason


def run_fake_rung(monkeypatch: pytest.MonkeyPatch, check) -> rung.Result:
    monkeypatch.setattr("scripts.gpu_check.machine.toolkit", check)
    return run_here(TOOLKIT, 3)


def test_a_failure_keeps_the_numbers_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(gpus: int) -> Passed:
        rung.note(first_s=1.5)
        raise ValueError("out of memory")

    assert run_fake_rung(monkeypatch, check).numbers == {"first_s": 1.5}
    passed = run_fake_rung(monkeypatch, lambda gpus: Passed(f"{gpus} seen", {"gpus": gpus}))
    assert (passed.verdict, passed.line, passed.numbers, passed.remedy) == (PASSED, "3 seen", {"gpus": 3}, "")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (IndexError("list index out of range"), (FAILED, "IndexError: list index out of range", "install a compiler")),
        (UserError("broken", "mend it"), (FAILED, "broken", "mend it")),
        (Skipped("no driver"), (SKIPPED, "no driver", "")),
    ],
)
def test_an_exception_is_a_verdict(monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: tuple) -> None:
    def check(gpus: int) -> Passed:
        raise raised

    result = run_fake_rung(monkeypatch, check)
    assert (result.verdict, result.line, result.remedy) == expected
    assert ("Traceback" in result.traceback) == (result.verdict == FAILED)


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch):
    """Let a rung's process be a program of the test; `$NOTES` is the file of its notes."""
    run = kept.run

    def use(source: str, seconds: float = 20) -> rung.Result:
        def run_program(command: list[str], folder: Path, limit: float) -> int | None:
            return run(["bash", "-c", f"NOTES={command[-1]}\n{source}"], folder, limit)

        monkeypatch.setattr(kept, "run", run_program)
        return run_apart(Rung("one", "machine:toolkit", "mend it", gpus=0, seconds=seconds), 0)

    return use


# A process with a session of its own, as Ray and vLLM start them, that ignores SIGTERM; and its own child.
STRAYS = """
setsid bash -c 'trap "" TERM HUP INT; sleep 300 & echo $$ $! >{0}.part; mv {0}.part {0}; while :; do wait; done' &
while [[ ! -f {0} ]]; do sleep 0.05; done
"""


def assert_gone(pids: Path) -> None:
    left = [pid for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    assert not [pid for pid in left if psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE]


def test_a_crash_is_a_failure_with_the_end_of_its_output(run_program) -> None:
    result = run_program("echo a kernel crashed >&2; kill -SEGV $$")
    assert (result.verdict, result.line, result.remedy) == (FAILED, "its process ended with 139", "mend it")
    assert "a kernel crashed" in result.log


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "GRACE_SECONDS", 0.5)


def test_a_rung_that_hangs_is_ended_with_what_it_started_and_its_notes_stay(run_program, short_grace, tmp_path) -> None:
    pids = tmp_path / "pids"
    result = run_program(f"{STRAYS.format(pids)}\necho '{{\"first_s\": 2}}' >$NOTES\ntrap '' TERM; wait; wait", 10)
    assert (result.verdict, result.line) == (FAILED, "it was ended after 10 s")
    assert result.numbers == {"first_s": 2}
    assert_gone(pids)


def test_what_outlives_a_rung_is_ended(run_program, short_grace, tmp_path: Path) -> None:
    """As a core whose engine was killed: init would be its parent."""
    pids = tmp_path / "pids"
    result = run_program(f"{STRAYS.format(pids)}\nkill -KILL $$")
    assert result.line == "its process ended with 137"
    assert_gone(pids)


GPU_CHECK = """
import runpy, sys
from scripts.gpu_check import kept, seen
real, source = kept.run, sys.argv[1]
kept.GRACE_SECONDS = 0.5
kept.run = lambda _, folder, limit: real(["bash", "-c", source], folder, limit)
seen.look = lambda: {"versions": {}, "gpus": [], "fault": ""}
sys.argv[1:] = ["--only", "driver"]
runpy.run_module("scripts.gpu_check", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_signal_to_gpu_check_ends_its_rung_with_all_that_it_started(name: str, tmp_path: Path) -> None:
    """Also a signal that gpu_check cannot see: its supervisor does."""
    signum, pids = getattr(signal, name), tmp_path / "pids"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have let it be ignored
    process = subprocess.Popen([sys.executable, "-c", GPU_CHECK, f"{STRAYS.format(pids)}\nsleep 300"])
    signal.signal(signal.SIGINT, before)
    wait_until(pids.is_file)
    process.send_signal(signum)
    code = process.wait(60)
    if signum == signal.SIGKILL:
        started = [int(pid) for pid in pids.read_text().split()]
        wait_until(lambda: not any(map(psutil.pid_exists, started)))
    else:
        assert code == 128 + signum
    assert_gone(pids)


def wait_until(is_done) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_rung_in_a_process_of_its_own_reports_as_here() -> None:
    result = run_apart(TOOLKIT, 0)
    assert result.verdict == PASSED, result
    assert "compiles" in result.line and result.numbers["compiler"] and not result.log


def test_a_failure_does_not_end_the_ladder_and_the_report_is_redacted(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "abcdef-123456")

    def check(each: Rung, gpus: int) -> rung.Result:
        return rung.Result(each.name, FAILED, "the key abcdef-123456 was printed", remedy="mend it")

    monkeypatch.setattr(rung, "run_apart", check)
    said: list[rung.Result] = []
    rungs = [TOOLKIT, Rung("two", "machine:numa", "", gpus=1), TOOLKIT]
    results = climb(rungs, NOTHING, said.append, tmp_path / "folder" / "report.json")
    assert [result.verdict for result in results] == [FAILED, SKIPPED, FAILED] and said == results
    text = (tmp_path / "folder" / "report.json").read_text()
    assert "abcdef-123456" not in text and "<SERVICE_API_KEY>" in text
    assert [one["verdict"] for one in json.loads(text)["rungs"]] == [FAILED, SKIPPED, FAILED]


def hide_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"versions": {"torch": "2.0", "vllm": None}, "gpus": [], "fault": "", "hardware": {}}
    monkeypatch.setattr(seen, "look", lambda: found)
    monkeypatch.setattr(machine, "find_driver", lambda: None)
    monkeypatch.setattr(rung, "run_apart", run_here)


def test_without_a_gpu_it_names_what_it_skipped_and_is_done(monkeypatch, tmp_path: Path, capsys) -> None:
    hide_gpus(monkeypatch)
    monkeypatch.setattr("grpo.stack.machine.gpus", list)
    assert command.main(["--out", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr().out
    assert "torch 2.0, vllm missing" in printed and f"0 of {len(LADDER)} rungs passed" in printed
    assert f"skipped: {', '.join(each.name for each in LADDER)}" in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert {one["verdict"] for one in report["rungs"]} == {SKIPPED} and len(report["rungs"]) == len(LADDER)


def test_a_driver_without_a_usable_gpu_fails(monkeypatch, tmp_path: Path, capsys) -> None:
    hide_gpus(monkeypatch)
    monkeypatch.setattr(machine, "find_driver", lambda: "470.1")
    monkeypatch.setattr("grpo.stack.machine.gpus", lambda: [None])
    assert command.main(["--out", str(tmp_path / "report.json")]) == 1
    assert "driver 470.1 lists 1 GPUs" in capsys.readouterr().out


def test_some_rungs_write_no_report_unless_asked(monkeypatch, tmp_path: Path, capsys) -> None:
    hide_gpus(monkeypatch)
    monkeypatch.setattr(command, "GPU_REPORT", tmp_path / "kept.json")
    assert command.main(["--only", "NUMA", "receipt"]) == 0
    assert "0 of 2 rungs passed\n" in capsys.readouterr().out and not (tmp_path / "kept.json").exists()


def test_bad_calls_are_refused(tmp_path: Path, capsys) -> None:
    for words in (["--only", "nothing"], ["--out", str(tmp_path)]):
        with pytest.raises(SystemExit) as end:
            command.main(words)
        assert end.value.code == 2
    assert "is a folder" in capsys.readouterr().err


def test_what_this_machine_has_is_seen() -> None:
    found = seen.look()
    assert found["versions"]["torch"] and found["versions"]["python"] and not found["fault"]
    assert set(seen.PACKAGES) < found["versions"].keys() and found["hardware"]["cpus"]
    assert len(found["gpus"]) == len(seen.describe_torch()["gpus"])


def test_a_broken_pytorch_is_a_fault_and_no_crash(monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/bash\necho 'ImportError: libcudart.so.12' >&2; exit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(seen.sys, "executable", str(program))
    assert seen.look()["fault"] == "ImportError: libcudart.so.12"


def test_the_module_has_no_heavy_imports() -> None:
    """On a machine whose stack is broken, the ladder still starts."""
    code = "import sys, scripts.gpu_check.__main__; print([m for m in ('torch', 'ray', 'vllm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr
