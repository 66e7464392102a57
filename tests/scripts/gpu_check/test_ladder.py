"""The ladder itself: verdicts, processes of their own, the report, the command."""

import json
import time
from pathlib import Path

import pytest

from scripts.gpu_check import __main__ as command
from scripts.gpu_check import rung, seen
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
    assert Rung("one", "machine:driver", "", gpus, packages).lacks(found) == reason


def fake(monkeypatch: pytest.MonkeyPatch, check) -> rung.Result:
    monkeypatch.setattr("scripts.gpu_check.machine.toolkit", check)
    return run_here(TOOLKIT, 3)


def test_what_passes_has_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fake(monkeypatch, lambda gpus: Passed(f"{gpus} seen", {"gpus": gpus}))
    assert (result.verdict, result.line, result.numbers, result.remedy) == (PASSED, "3 seen", {"gpus": 3}, "")


def test_an_exception_is_a_failure_with_traceback_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fake(monkeypatch, lambda gpus: [][gpus])
    assert (result.verdict, result.line) == (FAILED, "IndexError: list index out of range")
    assert "Traceback" in result.traceback and result.remedy == "install a compiler"


def test_a_remedy_of_its_own_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo.stack.problem import UserError

    def check(gpus: int) -> Passed:
        raise UserError("broken", "mend it")

    result = fake(monkeypatch, check)
    assert (result.verdict, result.line, result.remedy) == (FAILED, "broken", "mend it")


def test_a_rung_may_find_that_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(gpus: int) -> Passed:
        raise Skipped("no driver")

    result = fake(monkeypatch, check)
    assert (result.verdict, result.line, result.remedy) == (SKIPPED, "no driver", "")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Let a rung's process be a program of the test; its last argument is the file of the result."""

    def use(source: str, seconds: float = 20, **more) -> rung.Result:
        (tmp_path / "python").write_text(f"#!/bin/bash\n{source}\n")
        (tmp_path / "python").chmod(0o700)
        monkeypatch.setattr(rung.sys, "executable", str(tmp_path / "python"))
        return run_apart(Rung("one", "machine:toolkit", "mend it", gpus=0, seconds=seconds), 0)

    return use


def test_a_crash_is_a_failure_with_the_end_of_its_output(program) -> None:
    result = program("echo a kernel crashed >&2; kill -SEGV $$")
    assert (result.verdict, result.line, result.remedy) == (FAILED, "its process ended with -11", "mend it")
    assert "a kernel crashed" in result.log


def test_a_rung_that_hangs_is_ended_with_what_it_started(program, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rung, "GRACE_SECONDS", 1)
    result = program(f"trap '' INT; (sleep 300; touch {tmp_path}/late) & echo $! >{tmp_path}/child; wait; wait", 1)
    assert (result.verdict, result.line) == (FAILED, "it was ended after 1 s")
    child = Path("/proc", (tmp_path / "child").read_text().strip())
    deadline = time.monotonic() + 20
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "\nState:\tZ" in (child / "status").read_text()


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


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"versions": {"torch": "2.0", "vllm": None}, "gpus": [], "fault": "", "hardware": {}}
    monkeypatch.setattr(seen, "look", lambda: found)
    monkeypatch.setattr(seen, "driver", lambda: None)
    monkeypatch.setattr(rung, "run_apart", run_here)


def test_without_a_gpu_it_names_what_it_skipped_and_is_done(monkeypatch, tmp_path: Path, capsys) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setattr("grpo.stack.machine.gpus", list)
    assert command.main(["--out", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr().out
    assert "torch 2.0, vllm missing" in printed and f"0 of {len(LADDER)} rungs passed" in printed
    assert f"skipped: {', '.join(each.name for each in LADDER)}" in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert {one["verdict"] for one in report["rungs"]} == {SKIPPED} and len(report["rungs"]) == len(LADDER)


def test_a_driver_without_a_usable_gpu_fails(monkeypatch, tmp_path: Path, capsys) -> None:
    no_gpu(monkeypatch)
    monkeypatch.setattr(seen, "driver", lambda: "470.1")
    monkeypatch.setattr("grpo.stack.machine.gpus", lambda: [None])
    assert command.main(["--out", str(tmp_path / "report.json")]) == 1
    assert "driver 470.1 lists 1 GPUs" in capsys.readouterr().out


def test_some_rungs_write_no_report_unless_asked(monkeypatch, tmp_path: Path, capsys) -> None:
    no_gpu(monkeypatch)
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
    assert len(found["gpus"]) == len(seen.of_torch()["gpus"])


def test_a_broken_pytorch_is_a_fault_and_no_crash(monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/bash\necho 'ImportError: libcudart.so.12' >&2; exit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(seen.sys, "executable", str(program))
    assert seen.look()["fault"] == "ImportError: libcudart.so.12"


def test_the_module_has_no_heavy_imports() -> None:
    """On a machine whose stack is broken, the ladder still starts."""
    import subprocess
    import sys

    code = "import sys, scripts.gpu_check.__main__; print([m for m in ('torch', 'ray', 'vllm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr
