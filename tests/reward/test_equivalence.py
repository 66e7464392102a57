"""The worker processes under faults: real processes that hang, are killed, lose their parent or their memory."""

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward import equivalence

ROOT = Path(equivalence.__file__).resolve().parents[1]
# Small enough to pass the guard, and hours of work.
HANGS = "\\binom{n+99999999}{9999999}"
SECRET = "not-to-be-inherited"
SPARE: list[equivalence.Worker] = []


def limit_seconds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("LIMIT_SECONDS", "INTEGER_LIMIT_SECONDS"):
        monkeypatch.setattr(equivalence, name, seconds)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch):
    """A separate pool without cached verdicts. Its workers are killed after a short limit, and at the end."""
    pool = equivalence.Pool()
    monkeypatch.setattr(equivalence, "pool", pool)
    limit_seconds(monkeypatch, 1.0)
    yield pool
    SPARE.extend(pool.idle[: 1 - len(SPARE)])
    for worker in pool.alive.difference(SPARE):
        worker.end()


@pytest.fixture
def warm_pool(pool):
    """The same with one worker, which an earlier test has left: starting one takes a second."""
    if SPARE:
        pool.idle.append(SPARE.pop())
        pool.alive.update(pool.idle)
        pool.counts["started"] = 1
    else:
        pool.warm_up()
    return pool


def list_pids(pool) -> list[int]:
    return [worker.process.pid for worker in pool.alive]


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_worker_starts_only_if_needed(pool) -> None:
    assert equivalence.equal("\\frac12", "0.5") and not equivalence.equal("(1,2)", "[1,2]")
    assert not equivalence.equal("9^{9^{9}}", "5")
    assert pool.counts == {} and not pool.alive


def test_a_pair_that_hangs_is_unequal_and_the_next_is_decided(warm_pool, caplog: pytest.LogCaptureFixture) -> None:
    assert not equivalence.equal(HANGS, "7")
    assert not equivalence.equal(HANGS, "7")  # decided: it does not hang again
    assert not equivalence.equal(HANGS, "8")
    assert equivalence.equal("x(x+1)", "x^2+x")
    assert warm_pool.counts == {"started": 3, "hung": 2}
    assert sum("hung" in record.message for record in caplog.records) == 1


def test_a_worker_killed_while_idle_is_replaced(warm_pool) -> None:
    assert equivalence.equal("x(x+1)", "x^2+x")
    (pid,) = list_pids(warm_pool)
    os.kill(pid, signal.SIGKILL)
    assert equivalence.equal("x(x+2)", "x^2+2x")
    assert warm_pool.counts == {"started": 2} and list_pids(warm_pool) != [pid]


def test_a_worker_killed_in_its_work_is_replaced_once(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_seconds(monkeypatch, 60.0)
    verdicts = []
    caller = threading.Thread(target=lambda: verdicts.append(equivalence.equal(HANGS, "7")))
    caller.start()
    killed: set[int] = set()
    while caller.is_alive():
        # A worker that computes has used processor time beyond what it took to start.
        for worker in list(warm_pool.alive):
            if worker.process.pid not in killed:
                time.sleep(0.3)
                os.kill(worker.process.pid, signal.SIGKILL)
                killed.add(worker.process.pid)
        caller.join(0.05)
    assert verdicts == [False] and len(killed) == 2
    assert warm_pool.counts == {"started": 2, "died": 1}
    assert equivalence.equal("x(x+1)", "x^2+x")


def test_a_stopped_worker_is_given_up(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert equivalence.equal("x(x+1)", "x^2+x")
    monkeypatch.setattr(equivalence, "WALL_LIMIT_SECONDS", 0.5)
    (pid,) = list_pids(warm_pool)
    os.kill(pid, signal.SIGSTOP)
    assert not equivalence.equal("x(x+2)", "x^2+2x")
    assert warm_pool.counts["hung"] == 1 and not is_running(pid)


def test_threads_are_served_while_one_pair_hangs(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "WORKERS", 2)
    pool.start()
    limit_seconds(monkeypatch, 60.0)
    hanging = threading.Thread(target=equivalence.equal, args=(HANGS, "7"), daemon=True)
    hanging.start()

    def ask(n: int) -> bool:
        return equivalence.equal(f"x(x+{n})", f"x^2+{n}x") and not equivalence.equal(f"x(x+{n})", f"x^2-{n}x")

    with ThreadPoolExecutor(24) as callers:
        assert all(callers.map(ask, range(2, 26)))
    assert hanging.is_alive() and pool.counts == {"started": 2}
    for worker in list(pool.alive):
        if worker not in pool.idle:
            os.kill(worker.process.pid, signal.SIGPROF)  # as its limit would
    hanging.join()
    assert pool.counts["hung"] == 1


def test_threads_that_ask_for_one_pair_share_its_verdict(warm_pool) -> None:
    with ThreadPoolExecutor(8) as callers:
        verdicts = list(callers.map(lambda _: equivalence.equal(HANGS, "7"), range(8)))
    assert verdicts == [False] * 8
    assert warm_pool.counts == {"started": 1, "hung": 1}


def test_shared_failure_reaches_all_callers_and_is_not_cached(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert equivalence.equal("x(x+1)", "x^2+x")
    limit_seconds(monkeypatch, 60.0)
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 1.0)

    def ask(_: int) -> None:
        with pytest.raises(equivalence.Unavailable):
            equivalence.equal(HANGS, "7")

    # The limit holds for all of the waiting, and what took too long for the callers is not called unequal.
    with ThreadPoolExecutor(8) as callers:
        list(callers.map(ask, range(8)))
    assert "hung" not in warm_pool.counts and not warm_pool.alive
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 60.0)
    limit_seconds(monkeypatch, 1.0)
    assert not equivalence.equal(HANGS, "7") and warm_pool.counts["hung"] == 1


def test_an_integer_has_less_time(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "LIMIT_SECONDS", 60.0)
    assert not equivalence.equal(HANGS, "7") and warm_pool.counts["hung"] == 1


def test_verdicts_are_kept_up_to_a_number(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "MAX_VERDICTS", 3)
    for n in range(2, 8):
        assert equivalence.equal(f"x(x+{n})", f"x^2+{n}x")
    assert len(warm_pool.verdicts) == 3


def test_a_caller_waits_no_longer_than_its_limit(warm_pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 0.1)
    for _ in range(equivalence.WORKERS):
        assert warm_pool.slots.acquire()  # as callers do whose pairs take long
    with pytest.raises(equivalence.Unavailable, match="busy"):
        equivalence.equal("x(x+1)", "x^2+x")
    warm_pool.slots.release(equivalence.WORKERS)
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 60.0)
    assert equivalence.equal("x(x+1)", "x^2+x")  # nothing was remembered


ENGINE = """
import importlib.util, time
from pathlib import Path
from reward import equivalence
spec = importlib.util.spec_from_file_location("reward_func", Path("reward/reward_func.py").resolve())
spec.loader.exec_module(importlib.util.module_from_spec(spec))  # as OpenRLHF does when an engine starts
begin = time.monotonic()
while not equivalence.pool.idle and time.monotonic() < begin + 60:
    time.sleep(0.1)
(worker,) = equivalence.pool.idle
assert equivalence.equal("x(x+1)", "x^2+x")
assert equivalence.pool.idle == [worker] and equivalence.pool.counts == {"started": 1}
"""


def test_a_worker_is_ready_before_the_first_pair() -> None:
    subprocess.run([sys.executable, "-c", ENGINE], cwd=ROOT, check=True)


def test_warming_up_twice_starts_one_worker(pool) -> None:
    pool.warm_up()
    pool.warm_up()
    assert pool.counts == {"started": 1} and len(pool.idle) == 1


def test_the_first_pair_waits_for_the_worker_that_starts(pool) -> None:
    equivalence.warm_up()
    assert equivalence.equal("x(x+1)", "x^2+x")
    assert pool.counts == {"started": 1}


def test_an_import_starts_no_worker() -> None:
    script = """
import threading, reward.answers, eval.output
from reward import equivalence
assert not equivalence.pool.counts and threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_an_evaluation_starts_a_worker_before_its_first_sample() -> None:
    script = """
import tempfile, time
from pathlib import Path
from eval.output import Output
from reward import equivalence
with tempfile.TemporaryDirectory() as folder, Output(Path(folder) / "out", {}, {}, [], 1, [1]):
    end = time.monotonic() + 60
    while not equivalence.pool.idle:
        assert time.monotonic() < end
        time.sleep(0.05)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_failed_warm_up_is_reported_without_raising(
    pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(equivalence, "_COMMAND", [sys.executable, "-c", "raise SystemExit(3)"])
    pool.warm_up()
    assert "exit code 3" in caplog.text
    assert all(pool.slots.acquire(blocking=False) for _ in range(equivalence.WORKERS))


def test_a_worker_that_does_not_start_says_how_to_see_why(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_COMMAND", [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(equivalence.Unavailable, match=r"exit code 3.*python -m reward.equivalence_worker"):
        equivalence.equal("x(x+1)", "x^2+x")
    assert equivalence.equal("5", "5.0")


def test_a_python_without_math_verify_is_told_what_to_install(tmp_path: Path) -> None:
    """Another project that has this one on its path. `-S` hides all installed packages, from the worker, too."""
    script = r"""
import sys
from reward import equivalence
from reward.answers import grade
equivalence._COMMAND.insert(1, "-S")
assert grade(r"\boxed{204}", "204").correct, "integers need no package"
try:
    grade(r"\boxed{x(x+1)}", "x^2+x")
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names, _, remedy = done.stdout.strip().partition(", which this Python lacks: pip install ")
    assert names.endswith("need math_verify, latex2sympy2_extended, sympy")
    assert remedy in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_a_worker_holds_no_secret_no_torch_and_a_memory_limit(pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    assert equivalence.equal("x(x+1)", "x^2+x")
    (pid,) = list_pids(pool)
    assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if "address space" in line] == [str(2**30)]


PARENT = """
import os, sys, threading
from reward import equivalence
equivalence.LIMIT_SECONDS = 2.0
assert equivalence.equal("x(x+1)", "x^2+x")
(worker,) = equivalence.pool.alive
if sys.argv[1] == "hanging":
    threading.Thread(target=equivalence.equal, args=(r"\\binom{n+99999999}{9999999}", "7")).start()
print(worker.process.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("state", ["idle", "hanging"])
def test_a_worker_ends_with_its_parent(state: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, state], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_forked_child_has_workers_of_its_own(warm_pool) -> None:
    assert equivalence.equal("x(x+1)", "x^2+x")
    pool_of_parent = list_pids(warm_pool)
    child = os.fork()
    if child == 0:
        warm_pool.after_fork()  # registered for the pool of the module, which this one replaces
        right = (
            not list_pids(warm_pool)
            and equivalence.equal("x(x+2)", "x^2+2x")
            and list_pids(warm_pool) != pool_of_parent
        )
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert equivalence.equal("x(x+3)", "x^2+3x") and list_pids(warm_pool) == pool_of_parent
