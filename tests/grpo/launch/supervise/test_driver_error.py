"""The end of a failed run names its cause. Exceptions are Ray's own; the signals and the full disk are real."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ray import exceptions

from grpo.launch.supervise import driver_error
from grpo.launch.supervise.driver_error import KEPT, DriverError
from grpo.stack import cluster
from grpo.stack.problem import Problem, UserError

# Ray 2.55.1 writes it like this; the text goes on beyond what is kept of it.
LOW_MEMORY = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.7, ID: 30eba0aca0) "
    "was 22.37GB / 23.54GB (0.950401), which exceeds the memory usage threshold of 0.950000; "
) + "- bytes spillable: 0; " * 30


def find(tmp_path: Path, error: DriverError | None = None, **known: Any) -> Problem | None:
    if error:
        (tmp_path / KEPT).write_text(json.dumps(asdict(error)))
    return driver_error.find(tmp_path, **{"folders": {}, "code": 1} | known)


@pytest.mark.parametrize(
    ("error", "code", "what", "remedy"),
    [
        (DriverError("ValueError", "wrong", "mend"), 1, "wrong", "mend"),
        # a driver that crashes, and one that Ray aborts because something has died
        (None, -9, "the driver was killed by SIGKILL", "memory"),
        (DriverError("ValueError", "old"), -11, "the driver was killed by SIGSEGV", ""),
        (None, -6, "the driver was killed by SIGABRT", ""),
        (DriverError("ActorDiedError", "an engine died"), -6, "an engine died", ""),
    ],
)
def test_the_first_cause_is_found(tmp_path: Path, error: DriverError, code: int, what: str, remedy: str) -> None:
    found = find(tmp_path, error, code=code)
    assert found and found.what == what and remedy in found.remedy and bool(remedy) == bool(found.remedy)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (exceptions.OutOfMemoryError(LOW_MEMORY), "host memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "--micro_train_batch_size"),
        (OSError(24, "Too many open files"), "ulimit -Hn"),
        (OSError(28, "No space left on device"), "--ckpt_path"),
        (ValueError("a shape"), ""),
    ],
)
def test_frequent_exceptions_have_a_remedy(tmp_path: Path, error: Exception, remedy: str) -> None:
    found = driver_error.explain(error, tmp_path / "absent")
    assert found.what.startswith(type(error).__name__) and remedy in found.remedy and bool(remedy) == bool(found.remedy)


@pytest.fixture
def ray_with_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Namespace(is_initialized=lambda: True))
    monkeypatch.setattr(driver_error, "find_dead_actor", lambda: "an actor rank died (pid 77)")


def test_what_died_is_the_cause_of_what_others_say(tmp_path: Path, ray_with_a_death, monkeypatch) -> None:
    monkeypatch.setattr(cluster, "wait_for_lost_nodes", list)
    closed = RuntimeError("Connection closed by peer")
    found = driver_error.explain(closed, tmp_path)
    assert found.what == "an actor rank died (pid 77)" and "worker-*-PID.err" in found.remedy
    monkeypatch.setattr(cluster, "wait_for_lost_nodes", lambda: ["10.0.0.2"])
    assert driver_error.explain(closed, tmp_path).what == "node 10.0.0.2 was lost"


# As vLLM 0.15 and Ray 2.48 write them, with their colors.
_RAY, _CORE, _WORKER = (
    "\x1b[36m(LLMRayActor pid=6)\x1b[0m ",
    "\x1b[0;36m(EngineCore_DP0 pid=8)\x1b[0;0m ",
    "(Worker_TP1 pid=9) ",
)
NO_ENGINE = f"""{_RAY}RuntimeError: Engine core initialization failed. See root cause above.
{_RAY}{_WORKER}ERROR 11-26 23:34:52 [multiproc_executor.py:772]     raise RuntimeError("the message of a line: no")
{_RAY}{_WORKER}ERROR 11-26 23:34:52 [multiproc_executor.py:772] RuntimeError: port 7 is a name already: start again
{_RAY}{_CORE}ERROR 11-26 23:34:53 [core.py:946] Exception: WorkerProc initialization failed due to an exception
"""


def test_an_engine_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, told = (
        tmp_path / "driver.log",
        "Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )
    for is_cpu in (False, True):  # without a log; a CPU has no graphs
        monkeypatch.setattr(driver_error, "is_cpu_stack", lambda is_cpu=is_cpu: is_cpu)
        assert ("--enforce_eager" in driver_error.explain(RuntimeError(told), log).remedy) != is_cpu
    log.write_text(NO_ENGINE)
    found = driver_error.explain(RuntimeError(told), log)
    assert found.what == "an engine did not start: RuntimeError: port 7 is a name already: start again"


def test_the_driver_keeps_the_exception_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_API_KEY", "a-secret-value")
    first = UserError("the adapter a-secret-value is not finite", "lower --actor_learning_rate")
    outer = exceptions.RayTaskError("fit", "Traceback ...", exceptions.RayTaskError("save", "Traceback ...", first))
    kept = driver_error.explain(outer, Path())
    assert kept == DriverError("UserError", "the adapter <THE_API_KEY> is not finite", "lower --actor_learning_rate")


def test_an_exception_at_the_start_of_an_actor_is_found_in_the_message_of_its_death() -> None:
    trace = 'Traceback (most recent call last):\n  File "x"\nKeyError: 1\n\nTraceback (most recent call last):\n'
    failed = exceptions.RayTaskError("__init__", trace + "ValueError: no such model", ValueError("no such model"))
    kept = driver_error.explain(exceptions.ActorDiedError(failed), Path())
    assert kept.what == "ValueError: no such model"


def test_what_ends_a_process_is_kept_for_the_launcher(tmp_path: Path) -> None:
    program = "from grpo.launch.supervise import driver_error; driver_error.install(); raise ValueError('the reason')"
    environment = {**os.environ, driver_error.FILE_VARIABLE: str(tmp_path / KEPT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
    assert "ValueError: the reason" in done.stderr
    assert driver_error.read(tmp_path) == DriverError("ValueError", "ValueError: the reason")
