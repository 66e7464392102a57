"""After any end of a run, its processes are gone and no other process is touched. Real processes, no Ray."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from grpo.launch.supervise import processes
from tests.supervised import find_processes, is_alive, list_children, wait_until

ROOT = Path(__file__).parents[4]
LAUNCHER = """
import sys
from pathlib import Path
from grpo.launch.supervise import processes
from grpo.launch.supervise.supervisor import Job, supervise
folder, *driver = sys.argv[1:]

def main():
    end = supervise(Job([sys.executable, *driver], Path(folder), grace=5.0))
    print(f"failed       {end.cause}", flush=True)
    return end.code

sys.exit(processes.guard(main))
"""
# A stand-in for the trainer. It starts: a child; one that detaches and has no variable but that by which
# scripts/test.sh ends it; one that answers a SIGTERM with new shared memory; and holds a shared-memory segment. Then it
# ends as it is told.
DRIVER = """
import json, multiprocessing, os, signal, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from grpo.launch.supervise.processes import LOCK
folder, how = sys.argv[1:]
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
stubborn = [sys.executable, "-c", "import mmap, os, signal, sys, time\\n"
            "def more(*_):\\n"
            "    global memory\\n"
            "    file = open(f'/dev/shm/late-{os.getpid()}', 'w+b')\\n"
            "    file.truncate(10)\\n"
            "    memory = mmap.mmap(file.fileno(), 10)\\n"
            "    open(sys.argv[1], 'w').close()\\n"
            "signal.signal(15, more); print(1, flush=True)\\n"
            "while True: time.sleep(300)", folder + "/late"]
detach = [sys.executable, "-c", "import os, sys, time; os.fork() and os._exit(0); os.setsid(); "
          "os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(300)"]
child = subprocess.Popen(sleep)
answering = subprocess.Popen(stubborn, stdout=subprocess.PIPE)
answering.stdout.readline()
own = {"GRPO_TESTS": os.environ.get("GRPO_TESTS", "")}
detached = subprocess.Popen(detach, stdout=subprocess.PIPE, env=own)
pids = [os.getpid(), child.pid, answering.pid, int(detached.stdout.readline())]
segment = shared_memory.SharedMemory(create=True, size=1000)
semaphore = multiprocessing.get_context("spawn").Lock()
name = "sem." + semaphore._semlock.name[1:]
# As after a SIGKILL of the tracker: nobody else deletes them.
resource_tracker.unregister(segment._name, "shared_memory")
resource_tracker.unregister(semaphore._semlock.name, "semaphore")
lock = Path(os.environ["TMPDIR"]).with_name(LOCK)
while not {*lock.read_text().split()} >= {segment.name, name}:  # the launcher notes new shared memory
    time.sleep(0.05)
file = Path(folder) / "driver.json"
about = {"pids": pids, "shm": [segment.name, name], "late": f"late-{answering.pid}", "temporary": os.environ["TMPDIR"]}
file.with_suffix(".tmp").write_text(json.dumps(about))
file.with_suffix(".tmp").rename(file)
print("the last words of the driver", flush=True)
if how == "wait":
    time.sleep(300)
if how == "signal":
    os.kill(os.getpid(), signal.SIGUSR1)
os._exit(int(how))  # not sys.exit: that would delete the shared memory
"""


def reset_signals() -> None:
    """A script's background jobs ignore Ctrl-C, and what nohup starts ignores SIGHUP; their children inherit that."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


class Run:
    """A launcher in its own session, as a terminal starts it."""

    def __init__(self, folder: Path, how: str, prefix: str = "exec") -> None:
        self.folder = folder
        script = f'{prefix} "$@"'
        command = [sys.executable, "-c", LAUNCHER, str(folder), "-c", DRIVER, str(folder), how]
        self.shell = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=reset_signals,
        )

    def wait_for_driver(self) -> dict:
        """Wait until the driver has started everything; return what it says about itself."""
        file = self.folder / "driver.json"
        wait_until(file.exists, "the driver did not start")
        return json.loads(file.read_text())

    def find_launcher(self) -> int:
        """Return the child that owns the run; the shell has become its guard."""
        [pid] = list_children(self.shell.pid)
        return pid

    def finish(self) -> str:
        output, _ = self.shell.communicate(timeout=400)
        return output


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Start runs. If a test fails, end them as a user would."""
    runs: list[Run] = []

    def begin(*args: str | Path, **changes: str) -> Run:
        runs.append(Run(*args, **changes))  # type: ignore[arg-type]
        return runs[-1]

    yield begin
    for run in runs:
        run.shell.terminate()
        run.shell.wait(timeout=400)


def assert_nothing_left(driver: dict, is_late: bool = True) -> None:
    wait_until(lambda: not any(map(is_alive, driver["pids"])), f"left: {[p for p in driver['pids'] if is_alive(p)]}")
    names = [*driver["shm"], *([driver["late"]] if is_late else [])]
    wait_until(lambda: not any(Path("/dev/shm", name).exists() for name in names), "shared memory is left")
    wait_until(lambda: not Path(driver["temporary"]).parent.exists(), "the temporary folder is left")


@pytest.mark.parametrize(("how", "code"), [("0", 0), ("3", 3), ("signal", 128 + signal.SIGUSR1)])
def test_the_driver_ends_by_itself(tmp_path: Path, start, bystander, how: str, code: int) -> None:
    run = start(tmp_path, how)
    output = run.finish()
    assert run.shell.returncode == code
    assert_nothing_left(run.wait_for_driver())
    assert ("the last words of the driver" in output) == (code != 0), "shown only where it helps"
    assert (str(tmp_path / "driver.log") in output) and "Traceback" not in output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_from_the_terminal(tmp_path: Path, start, bystander, signum: signal.Signals) -> None:
    """An impatient user types Ctrl-C many times."""
    run = start(tmp_path, "wait")
    driver = run.wait_for_driver()
    for _ in range(10 if signum == signal.SIGINT else 1):
        os.killpg(run.shell.pid, signum)
        time.sleep(0.05)
    output = run.finish()
    assert run.shell.returncode == 128 + signum
    [line] = [line for line in output.splitlines() if "ending the run" in line]
    assert line.startswith("Ctrl-C" if signum == signal.SIGINT else signum.name) and "Traceback" not in output
    assert_nothing_left(driver)
    assert (tmp_path / "late").exists(), "nothing was created in the grace period"


def test_what_ends_after_its_parent_is_no_zombie_until_the_end(tmp_path: Path, start, bystander) -> None:
    """The detached process of the driver ended the one between them."""
    run = start(tmp_path, "wait")
    run.wait_for_driver()
    launcher = psutil.Process(run.find_launcher())
    wait_until(lambda: all(child.status() != psutil.STATUS_ZOMBIE for child in launcher.children()), "a zombie is left")


@pytest.mark.parametrize("which", ["guard", "launcher"])
def test_the_guard_or_the_launcher_is_killed(tmp_path: Path, start, bystander, which: str) -> None:
    run = start(tmp_path, "wait")
    driver = run.wait_for_driver()
    os.kill(run.find_launcher() if which == "launcher" else run.shell.pid, signal.SIGKILL)
    assert_nothing_left(driver, is_late=which != "launcher")
    output = run.finish()
    assert "Traceback" not in output
    if which == "launcher":
        assert run.shell.returncode == 128 + signal.SIGKILL
        assert "killed by SIGKILL" in output


def test_the_next_launch_deletes_what_is_left_if_everything_is_killed(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    driver = run.wait_for_driver()
    for pid in (run.shell.pid, run.find_launcher(), *driver["pids"]):
        os.kill(pid, signal.SIGKILL)
    run.finish()
    assert all(Path("/dev/shm", name).exists() for name in driver["shm"])
    processes.RunFolder().delete()
    assert_nothing_left(driver)


def test_a_terminal_that_is_closed_ends_the_run(tmp_path: Path, bystander) -> None:
    """The launcher can then print nothing more, not even that it ends the run."""
    terminal, end = pty.openpty()
    program = [sys.executable, "-c", LAUNCHER, str(tmp_path), "-c", DRIVER, str(tmp_path), "wait"]
    run = subprocess.Popen(
        program,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: (reset_signals(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )
    os.close(end)
    wait_until((tmp_path / "driver.json").exists, "the driver did not start")
    os.close(terminal)
    assert run.wait(400) == 128 + signal.SIGHUP
    assert_nothing_left(json.loads((tmp_path / "driver.json").read_text()))


def test_closed_output_ends_the_run(tmp_path: Path, start, bystander) -> None:
    run = start(tmp_path, "wait")
    assert run.shell.stdout
    run.shell.stdout.close()
    run.shell.wait(timeout=400)
    assert run.shell.returncode == 128 + signal.SIGPIPE
    assert not find_processes(str(tmp_path))


def test_a_hangup_that_the_caller_ignores_does_not_end_the_run(tmp_path: Path, start, bystander) -> None:
    run = start(tmp_path, "wait", prefix="trap '' HUP; exec")
    driver = run.wait_for_driver()
    os.kill(run.shell.pid, signal.SIGHUP)
    os.kill(run.shell.pid, signal.SIGTERM)
    run.finish()
    assert run.shell.returncode == 128 + signal.SIGTERM, "not of the signal before it"
    assert_nothing_left(driver)
