"""Checks: verdicts, processes of their own, the report, the command.

Only real processes show that a check that hangs or dies leaves none behind.
"""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import checks, machine
from benchmarks.checks import CHECKS, FAILED, PASSED, SKIPPED, Check, Passed, Skipped, run_all, run_apart, run_here
from grpo.stack.problem import UserError
from scripts import gpu_check
from tests.supervised import is_alive, wait_until

TOOLKIT = CHECKS[1]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (IndexError("index out of range"), (FAILED, "IndexError: index out of range", TOOLKIT.remedy)),
        (UserError("broken", "mend it"), (FAILED, "broken", "mend it")),
        (Skipped("no driver"), (SKIPPED, "no driver", "")),
        (None, (PASSED, "3 found", "")),
    ],
)
def test_what_happens_is_a_verdict(monkeypatch, capsys, raised: Exception | None, expected: tuple) -> None:
    def check(gpus: int) -> Passed:
        checks.note(first_s=1.5)
        if raised:
            raise raised
        return Passed(f"{gpus} found", {"gpus": gpus})

    monkeypatch.setattr(machine, "toolkit", check)
    result = run_here(TOOLKIT, 3)
    assert (result.verdict, result.line, result.remedy) == expected
    assert ("Traceback" in capsys.readouterr().err) == (result.verdict == FAILED)
    assert result.numbers == {"first_s": 1.5} | ({"gpus": 3} if result.verdict == PASSED else {})


# A process with a session of its own, as Ray and vLLM start them, that ignores SIGTERM; and its own child.
STRAYS = """
import os, signal, subprocess, time
from pathlib import Path
from benchmarks import checks

SCRIPT = 'trap "" TERM HUP INT; sleep 300 & echo $$ $! >{0}.part; mv {0}.part {0}; while :; do wait; done'

def check(gpus):
    checks.note(first_s=2)
    subprocess.Popen(["bash", "-c", SCRIPT], start_new_session=True)
    while not Path("{0}").exists():
        time.sleep(0.05)
    print("a kernel crashed", flush=True)
    {1}
"""


@pytest.fixture
def make_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a check that starts strays, and then does something; and the file with their ids."""
    monkeypatch.setattr(checks, "GRACE_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{checks.CHECKOUT}")

    def make(then: str) -> tuple[Check, Path]:
        (tmp_path / "strays.py").write_text(STRAYS.format(tmp_path / "pids", then))
        return Check("one", "strays:check", "mend it", gpus=0, seconds=400), tmp_path / "pids"

    return make


def assert_gone(pids: Path) -> None:
    wait_until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), "they outlived the check", 60)


@pytest.mark.parametrize(
    ("then", "line"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with -11"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)", "it was ended after 30 s"),
        ("raise ValueError('no')", "ValueError: no"),
    ],
)
def test_what_a_check_started_ends_with_it_and_its_notes_stay(make_check, then: str, line: str) -> None:
    one, pids = make_check(then)
    result = run_apart(replace(one, seconds=30) if "300" in then else one, 0)
    assert (result.verdict, result.line, result.remedy) == (FAILED, line, "mend it")
    assert result.numbers == {"first_s": 2} and "a kernel crashed" in result.log
    assert_gone(pids)


GPU_CHECK = """
import json, runpy, sys
from benchmarks import checks, machine
checks.GRACE_SECONDS = 0.5
checks.CHECKS = (checks.Check("driver", "strays:check", "", gpus=0),)
machine.look = lambda: {"versions": {}, "gpus": [], "fault": ""}
runpy.run_module("scripts.gpu_check", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_to_gpu_check_ends_its_check_with_all_that_it_started(make_check, name: str) -> None:
    _, pids = make_check("time.sleep(300)")
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # a shell, or nohup, may have let it be ignored
    process = subprocess.Popen([sys.executable, "-c", GPU_CHECK, "--only", "driver"])
    signal.signal(number, before)
    wait_until(pids.is_file, "the check did not start")
    process.send_signal(number)
    assert process.wait(400) == 128 + number
    assert_gone(pids)


def test_a_failure_does_not_end_the_others_and_the_report_is_redacted(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "abcdef-123456")
    secret = UserError("the key abcdef-123456 was printed", "mend it")
    monkeypatch.setattr(checks, "run_apart", lambda each, gpus: checks.Result(each.name, FAILED, str(secret)))
    said: list[checks.Result] = []
    several = [replace(TOOLKIT, gpus=0), Check("two", "benchmarks.machine:numa", "", gpus=1), replace(TOOLKIT, gpus=0)]
    found = {"versions": {}, "gpus": [], "fault": ""}
    results = run_all(several, found, said.append, tmp_path / "folder" / "report.json")
    assert [result.verdict for result in results] == [FAILED, SKIPPED, FAILED] and said == results
    text = (tmp_path / "folder" / "report.json").read_text()
    assert "abcdef-123456" not in text and "<SERVICE_API_KEY>" in text
    assert [one["verdict"] for one in json.loads(text)["checks"]] == [FAILED, SKIPPED, FAILED]


def test_without_a_gpu_everything_is_skipped_by_name(tmp_path: Path, capsys) -> None:
    """A real call: a machine with a GPU runs the checks in tests/gpu."""
    if machine.look()["gpus"]:
        pytest.skip("there is a GPU")
    assert gpu_check.main(["--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["name"] for one in report["checks"]] == [each.name for each in CHECKS if not each.on_request]
    assert {one["verdict"] for one in report["checks"]} == {SKIPPED} and not report["fault"]
    assert report["versions"]["torch"] and report["hardware"]["cpus"] and report["git"] and report["time"]
    assert f"0 of {len(report['checks'])} checks passed" in capsys.readouterr().out


def test_a_smoke_test_ends_within_10_minutes_and_tries_the_kernels_and_the_loop() -> None:
    quick = gpu_check.choose(None, quick=True)
    assert sum(each.seconds for each in quick) <= 600
    assert {"driver", "attention", "engine"} <= {each.name for each in quick}


def test_a_broken_pytorch_is_a_fault_and_no_crash(monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/bash\necho 'ImportError: libcudart.so.12' >&2; exit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(machine.sys, "executable", str(program))
    assert machine.look()["fault"] == "ImportError: libcudart.so.12"


def test_the_command_starts_on_a_machine_whose_stack_is_broken() -> None:
    code = "import sys, scripts.gpu_check; print([m for m in ('torch', 'ray', 'vllm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


ALONE = """
from importlib.machinery import PathFinder

ABSENT = {"vllm", "ray", "deepspeed", "peft", "openrlhf", "datasets", "pyarrow", "rich", "jinja2", "httpx2"}
real = PathFinder.find_spec
PathFinder.find_spec = staticmethod(lambda name, *rest: None if name.partition(".")[0] in ABSENT else real(name, *rest))
from benchmarks import kernels, layer
from benchmarks.random_model import shrink
kernels.experts(0, count=8, hidden=64, tokens=20)
kernels.log_probs(0, 20, 500)
kernels.checksum(0)
layer.check(0, (32, 64), shrink(512, hidden=128, heads=4, key_value_heads=2, experts=8, intermediate=128))
print("done")
"""


def test_pytorch_transformers_and_triton_are_enough_for_the_kernels_and_a_layer() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
