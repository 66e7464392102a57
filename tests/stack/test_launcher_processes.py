"""After any end of a run with a real Ray cluster, nothing of it is left, and other users' clusters keep working.

Other exit codes and signals take the same way; tests/grpo/launch/supervise/test_supervise.py has them without Ray, and
test_one_gpu.py a SIGTERM to a whole run. Only real Ray has daemons to leave and clusters to harm.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from grpo.launch.supervise import processes, ray_head
from grpo.launch.supervise.ray_head import RayHead
from tests.supervised import find_processes, is_alive, list_children, read_command_line, wait_until

pytestmark = pytest.mark.timeout(1500)
ROOT = Path(__file__).parents[2]
SMALL = "RayHead(num_gpus=2, num_cpus=6, object_store_bytes=100_000_000)"

LAUNCHER = f"""
import os, sys
from pathlib import Path
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise import processes
from grpo.launch.supervise.supervisor import Job, supervise
folder, *driver = sys.argv[1:]

def main():
    ray = None if "RAY_ADDRESS" in os.environ else {SMALL}
    end = supervise(Job([sys.executable, *driver], Path(folder), ray, grace=5.0))
    print("failed      ", end.cause and end.cause.what, flush=True)
    return end.code

sys.exit(processes.guard(main))
"""

# A stand-in for the trainer, with the same kinds of processes: a Ray actor on each GPU that starts a subprocess (as
# vLLM's engine core is one), a detached one with an empty environment, and a shared-memory segment.
DRIVER = """
import json, os, subprocess, sys, time
from multiprocessing import shared_memory
from pathlib import Path
import ray
from grpo.launch.supervise import driver_error, processes
from grpo.stack.cluster import runtime_env
driver_error.install()
folder, how = sys.argv[1:]
ray.init(runtime_env=runtime_env())

@ray.remote(num_gpus=1, num_cpus=1)
class LLMRayActor:
    def start(self):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        core = subprocess.Popen(sleep)
        own = {"GRPO_TESTS": os.environ.get("GRPO_TESTS", "")}
        detached = subprocess.Popen(sleep, start_new_session=True, env=own)
        self.segment = shared_memory.SharedMemory(create=True, size=1000)
        return [os.getpid(), core.pid, detached.pid], self.segment.name

    def work(self):
        time.sleep(600)

engines = [LLMRayActor.remote() for _ in range(2)]
started = ray.get([engine.start.remote() for engine in engines])
pids = [os.getpid()] + [pid for pids, _ in started for pid in pids]
names = [name for _, name in started]
works = [engine.work.remote() for engine in engines if how == "work"]
lock = Path(os.environ["TMPDIR"]).with_name(processes.LOCK)
while not {*lock.read_text().split()} >= {*names}:  # the launcher notes new shared memory
    time.sleep(0.05)
file = Path(folder) / "driver.json"
file.with_suffix(".tmp").write_text(json.dumps(
    {"pids": pids, "segments": names, "run": os.environ["GRPO_RUN_ID"], "temporary": os.environ["TMPDIR"]}))
file.with_suffix(".tmp").rename(file)
ray.get(works)
if how == "wait":
    time.sleep(600)
sys.exit(int(how))
"""

# Runs one task on a cluster.
PROBE = """
import ray
ray.init()
@ray.remote
def add(a, b):
    return a + b
print("sum", ray.get(add.remote(20, 22)))
"""


def make_environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **changes}


class Run:
    """A launcher in its own session."""

    def __init__(self, folder: Path, how: str, **changes: str) -> None:
        self.folder = folder
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(folder), "-c", DRIVER, str(folder), how],
            cwd=ROOT,
            env=make_environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # as in a terminal: a script's background jobs ignore Ctrl-C, and their children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for_driver(self) -> dict:
        file = self.folder / "driver.json"
        wait_until(lambda: file.exists() or self.launcher.poll() is not None, "the driver did not start")
        if not file.exists():
            pytest.fail(f"the launcher ended early: {self.launcher.communicate()[0]}")
        return json.loads(file.read_text())

    def find_launcher(self) -> int:
        [pid] = list_children(self.launcher.pid)
        return pid

    def finish(self) -> str:
        return self.launcher.communicate(timeout=400)[0]


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Start runs. If a test fails, end them as a user would."""
    runs: list[Run] = []

    def begin(*args: str | Path, **changes: str) -> Run:
        runs.append(Run(*args, **changes))  # type: ignore[arg-type]
        return runs[-1]

    yield begin
    for run in runs:
        run.launcher.terminate()
        run.launcher.wait(timeout=400)


def assert_nothing_left(driver: dict) -> None:
    base = Path(driver["temporary"]).parent
    wait_until(lambda: not base.exists(), f"{base} is left")
    assert not [pid for pid in driver["pids"] if is_alive(pid)]
    assert not processes.find_marked(driver["run"])
    # Ray's daemons name the folder on their command lines.
    assert not find_processes(str(base))
    assert not [name for name in driver["segments"] if Path("/dev/shm", name).exists()]


@dataclass
class Cluster:
    address: str
    head: subprocess.Popen
    daemons: set[int]


@pytest.fixture(scope="module")
def foreign_cluster() -> Iterator[Cluster]:
    """Another user's Ray cluster on the same machine, with a process that has our driver's command line."""
    folder, mark = processes.RunFolder(), f"foreign-{uuid.uuid4().hex}"
    base = folder.path
    command = ray_head.start_command(RayHead(num_gpus=2, num_cpus=4, object_store_bytes=100_000_000), base)
    with (base / "log").open("w") as log:
        head = subprocess.Popen(
            command,
            env=make_environment(**{processes.RUN_ID_VARIABLE: mark}),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        file = base / ray_head.ADDRESS
        wait_until(lambda: head.poll() is not None or (file.is_file() and bool(file.read_text().strip())), "no cluster")
        assert head.poll() is None, (base / "log").read_text()
        cluster = Cluster(file.read_text().strip(), head, set())
        assert probe(cluster.address) == 0
        # What ray start has begun for good: gcs_server, raylet, monitor and so on, not idle workers.
        cluster.daemons = set(list_children(head.pid))
        assert len(cluster.daemons) >= 3
        yield cluster
        assert probe(cluster.address) == 0, "the foreign cluster does not work any more"
    finally:
        for process in processes.find_marked(mark):
            process.kill()
        head.wait()
        folder.delete()


def probe(address: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=make_environment(RAY_ADDRESS=address),
        capture_output=True,
        text=True,
        timeout=400,
    )
    if "sum 42" not in done.stdout:
        print(done.stdout, done.stderr)
        return -1
    return done.returncode


@pytest.fixture(autouse=True)
def check_foreign_cluster(foreign_cluster: Cluster) -> Iterator[None]:
    yield
    assert foreign_cluster.head.poll() is None
    assert not [pid for pid in foreign_cluster.daemons if not is_alive(pid)]


@contextmanager
def hold_ports(ports: Sequence[int]) -> Iterator[None]:
    """Listen on ports; some may be busy already."""
    with ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("", port))
                listener.listen()
        yield


def test_the_driver_ends_although_the_usual_ports_are_busy(tmp_path: Path, start) -> None:
    # Ray's, its client's, its dashboard's, its workers' first, PyTorch's, and vLLM's
    with hold_ports([6379, 8265, 10001, 10002, 29500, 8000]):
        run = start(tmp_path, "0", GEMINI_API_KEY="s3cret-value", WANDB_API_KEY="s3cret-value")
        output = run.finish()
    assert run.launcher.returncode == 0, output
    assert_nothing_left(run.wait_for_driver())
    assert "Ray is up at" in output and "Traceback" not in output
    assert list(tmp_path.glob("ray-*/raylet.out")), "Ray's logs are kept"
    logs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in logs if b"s3cret-value" in path.read_bytes()], "a secret is in a log"


@pytest.mark.parametrize("which", ["guard", "launcher"])
def test_the_guard_or_the_launcher_is_killed(tmp_path: Path, start, which: str) -> None:
    run = start(tmp_path, "wait")
    driver = run.wait_for_driver()
    if which == "guard":
        os.killpg(run.launcher.pid, signal.SIGKILL)
    else:
        os.kill(run.find_launcher(), signal.SIGKILL)
    assert_nothing_left(driver)
    run.finish()


def test_ctrl_c_while_ray_starts(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    started = psutil.Process(run.launcher.pid).children
    wait_until(lambda: any("gcs_server" in read_command_line(each.pid) for each in started(True)), "Ray did not start")
    os.killpg(run.launcher.pid, signal.SIGINT)
    run.finish()
    assert run.launcher.returncode == 130
    assert not find_processes(str(tmp_path))
    assert not (tmp_path / "driver.json").exists()


@pytest.mark.parametrize(("which", "named"), [("head", "Ray was killed"), ("raylet", "Ray "), ("gcs_server", "Ray ")])
def test_a_process_of_ray_is_killed_and_named(tmp_path: Path, start, which: str, named: str) -> None:
    run = start(tmp_path, "work")
    driver = run.wait_for_driver()
    [head] = [pid for pid in list_children(run.find_launcher()) if "--head" in read_command_line(pid)]
    daemons = {psutil.Process(pid).name(): pid for pid in list_children(head)}
    os.kill({"head": head, **daemons}[which], signal.SIGKILL)
    output = run.finish()
    assert run.launcher.returncode == 1
    assert f"failed       {named}" in output, output
    assert which not in daemons or f"{which} [exit code=-9]" in output
    assert_nothing_left(driver)
