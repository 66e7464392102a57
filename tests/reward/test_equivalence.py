"""The worker process under faults: a real process that hangs, is killed, loses its parent or its memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward import equivalence

ROOT = Path(equivalence.__file__).resolve().parents[1]
SECRET = "not-to-be-inherited"


@pytest.fixture(scope="module")
def shared():
    return equivalence.Worker()


@pytest.fixture
def worker(shared: equivalence.Worker, monkeypatch: pytest.MonkeyPatch) -> equivalence.Worker:
    shared.ask.cache_clear()
    monkeypatch.setattr(equivalence, "worker", shared)
    assert equivalence.equal("x(x+1)", "x^2+x")
    return shared


def get_pid(worker: equivalence.Worker) -> int:
    assert worker.process
    return worker.process.pid


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_worker_starts_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "worker", equivalence.Worker())
    assert equivalence.equal("\\frac12", "0.5") and not equivalence.equal("(1,2)", "[1,2]")
    assert not equivalence.equal("9^{9^{9}}", "5") and equivalence.worker.process is None


def test_a_pair_beyond_the_limit_is_unequal_and_the_next_is_decided(worker, monkeypatch, caplog) -> None:
    monkeypatch.setattr(equivalence, "LIMIT_SECONDS", 1e-4)
    pid = get_pid(worker)
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(lambda _: equivalence.equal("\\sqrt{8}+x", "x+2\\sqrt2"), range(8))) == [False] * 8
    assert len(caplog.records) == 1 and not is_running(pid)  # it is asked once
    monkeypatch.setattr(equivalence, "LIMIT_SECONDS", 10.0)
    assert equivalence.equal("x(x+3)", "x^2+3x")


def test_a_worker_killed_from_outside_is_replaced(worker) -> None:
    pid = get_pid(worker)
    os.kill(pid, signal.SIGKILL)
    assert equivalence.equal("x(x+2)", "x^2+2x") and get_pid(worker) != pid


def test_a_stopped_worker_is_no_verdict(worker, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = get_pid(worker)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 0.05)
    with pytest.raises(equivalence.Unavailable):
        equivalence.equal("x(x+2)", "x^2+2x")
    assert not is_running(pid)
    monkeypatch.setattr(equivalence, "WAIT_SECONDS", 120.0)
    assert equivalence.equal("x(x+2)", "x^2+2x")


def test_threads_share_the_worker(worker) -> None:
    def ask(n: int) -> bool:
        return equivalence.equal(f"x(x+{n})", f"x^2+{n}x") and not equivalence.equal(f"x(x+{n})", f"x^2-{n}x")

    with ThreadPoolExecutor(24) as callers:
        assert all(callers.map(ask, range(2, 26)))


def test_a_worker_that_does_not_start_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "_COMMAND", [sys.executable, "-c", "raise SystemExit(3)"])
    monkeypatch.setattr(equivalence, "worker", equivalence.Worker())
    with pytest.raises(equivalence.Unavailable, match=r"-m reward\.equivalence"):
        equivalence.equal("x(x+1)", "x^2+x")
    assert equivalence.equal("5", "5.0")


def test_warming_up_starts_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "worker", equivalence.Worker())
    equivalence.warm_up()
    assert "equivalence-warmup" in {thread.name for thread in threading.enumerate()}
    assert equivalence.equal("x(x+1)", "x^2+x")
    get_pid(equivalence.worker)


def test_a_worker_holds_no_secret_no_torch_and_a_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    monkeypatch.setattr(equivalence, "worker", equivalence.Worker())
    assert equivalence.equal("x(x+1)", "x^2+x")
    pid = get_pid(equivalence.worker)
    assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[3] for line in limits.splitlines() if "address space" in line] == [str(2**30)]


def test_a_worker_ends_with_its_parent() -> None:
    script = """
import threading
from reward import equivalence
assert equivalence.equal("x(x+1)", "x^2+x")
print(equivalence.worker.process.pid, flush=True)
threading.Event().wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 400
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_forked_child_has_a_worker_of_its_own() -> None:
    assert equivalence.equal("x(x+1)", "x^2+x")
    pid = get_pid(equivalence.worker)
    child = os.fork()
    if child == 0:
        is_own = equivalence.worker.process is None and equivalence.equal("x(x+2)", "x^2+2x")
        os._exit(0 if is_own and get_pid(equivalence.worker) != pid else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert equivalence.equal("x(x+3)", "x^2+3x") and get_pid(equivalence.worker) == pid
