"""After any end of a run with a real Ray cluster, nothing of it is left, and other users' clusters keep working."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from grpo.launch.config import Config
from grpo.launch.supervise import joined_cluster, processes, ray_head, witness
from grpo.launch.supervise.ray_head import RayHead
from tests.faults import assert_seen
from tests.supervised import children, command_line, is_alive, naming, wait_until, watched_by

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
SMALL = "RayHead(num_gpus=2, num_cpus=6, object_store_bytes=100_000_000)"

LAUNCHER = f"""
import os, sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.driver import supervise
folder, *driver = sys.argv[1:]
ray = None if "RAY_ADDRESS" in os.environ else {SMALL}
end = supervise([sys.executable, *driver], ray=ray, log_dir=Path(folder), grace=5.0)
print("failed      ", end.cause)
sys.exit(end.code)
"""

# A stand-in for the trainer, with the same kinds of processes: a Ray actor on each GPU that starts a subprocess (as
# vLLM's engine core is one), a detached one with an empty environment, and a shared-memory segment.
DRIVER = """
import json, os, subprocess, sys, time
from multiprocessing import shared_memory
from pathlib import Path
from types import SimpleNamespace
from typing import cast
import ray
from grpo.launch.supervise import last_words
from grpo.stack.cluster import runtime_env
last_words.install()
folder, how = sys.argv[1:]
ray.init(runtime_env=runtime_env())

@ray.remote(num_gpus=1, num_cpus=1)
class LLMRayActor:
    def start(self):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        core = subprocess.Popen(sleep)
        detached = subprocess.Popen(sleep, start_new_session=True, env={})
        self.segment = shared_memory.SharedMemory(create=True, size=1000)
        return [os.getpid(), core.pid, detached.pid], self.segment.name

    def work(self):
        time.sleep(600)

engines = [LLMRayActor.remote() for _ in range(2)]
started = ray.get([engine.start.remote() for engine in engines])
pids = [os.getpid()] + [pid for pids, _ in started for pid in pids]
names = [name for _, name in started]
file = Path(folder) / "driver.json"
file.with_suffix(".tmp").write_text(json.dumps(
    {"pids": pids, "segments": names, "run": os.environ["GRPO_RUN_ID"], "temporary": os.environ["TMPDIR"]}))
file.with_suffix(".tmp").rename(file)
if how == "work":
    ray.get([engine.work.remote() for engine in engines])
# The keeper looks at most twice a second who owns new shared memory.
time.sleep(600 if how == "wait" else 2)
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


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **changes}


class Run:
    """A launcher in its own session."""

    def __init__(self, folder: Path, how: str, **changes: str) -> None:
        self.folder = folder
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(folder), "-c", DRIVER, str(folder), how],
            cwd=ROOT,
            env=environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # as in a terminal: a script's background jobs ignore Ctrl-C, and their children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def driver(self) -> dict:
        file = self.folder / "driver.json"
        wait_until(lambda: file.exists() or self.launcher.poll() is not None, "the driver did not start")
        if not file.exists():
            pytest.fail(f"the launcher ended early: {self.launcher.communicate()[0]}")
        return json.loads(file.read_text())

    def keeper(self) -> int:
        [pid] = children(self.launcher.pid)
        return pid

    def finish(self) -> str:
        return self.launcher.communicate(timeout=150)[0]


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
        run.launcher.wait(timeout=60)


def assert_nothing_left(driver: dict) -> None:
    base = Path(driver["temporary"]).parent
    wait_until(lambda: not base.exists(), f"{base} is left", 60)
    assert not [pid for pid in driver["pids"] if is_alive(pid)]
    assert not processes.marked(driver["run"])
    # Ray's daemons name the folder on their command lines.
    assert not naming(str(base))
    assert not [name for name in driver["segments"] if Path("/dev/shm", name).exists()]


@dataclass
class Cluster:
    address: str
    head: subprocess.Popen
    daemons: set[int]


@pytest.fixture(scope="module")
def foreign() -> Iterator[Cluster]:
    """Another user's Ray cluster on the same machine, with a process that has our driver's command line."""
    base, mark = ray_head.make_base_dir(), f"foreign-{uuid.uuid4().hex}"
    command = ray_head.start_command(RayHead(num_gpus=2, num_cpus=4, object_store_bytes=100_000_000), base)
    head = subprocess.Popen(
        command,
        env=environment(**{processes.RUN_ID_VARIABLE: mark}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        file = ray_head.address_file(base)
        wait_until(lambda: file.is_file() and bool(file.read_text().strip()), "the foreign cluster did not start")
        cluster = Cluster(file.read_text().strip(), head, set())
        assert probe(cluster.address) == 0
        # What ray start has begun for good: gcs_server, raylet, monitor and so on, not idle workers.
        cluster.daemons = set(children(head.pid))
        assert len(cluster.daemons) >= 3
        yield cluster
        assert probe(cluster.address) == 0, "the foreign cluster does not work any more"
    finally:
        ended = processes.end_all(mark, head.pid, grace=5)
        head.wait()
        assert not ended.left
        subprocess.run(["rm", "-rf", str(base)], check=True)


def probe(address: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment(RAY_ADDRESS=address),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "sum 42" not in done.stdout:
        print(done.stdout, done.stderr)
        return -1
    return done.returncode


@pytest.fixture(autouse=True)
def nothing_foreign_is_touched(foreign: Cluster) -> Iterator[None]:
    yield
    assert foreign.head.poll() is None
    assert not [pid for pid in foreign.daemons if not is_alive(pid)]


@pytest.mark.parametrize("code", [0, 3])
def test_the_driver_ends(tmp_path: Path, start, code: int) -> None:
    run = start(tmp_path, str(code), GEMINI_API_KEY="s3cret-value", WANDB_API_KEY="s3cret-value")
    output = run.finish()
    assert run.launcher.returncode == code, output
    assert_nothing_left(run.driver())
    assert "Ray is up at" in output and "Traceback" not in output
    assert (tmp_path / "ray" / "raylet.out").is_file(), "Ray's logs are kept"
    logs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in logs if b"s3cret-value" in path.read_bytes()], "a secret is in a log"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal(tmp_path: Path, start, signum: signal.Signals) -> None:
    run = start(tmp_path, "wait")
    driver = run.driver()
    os.killpg(run.launcher.pid, signum)
    output = run.finish()
    assert run.launcher.returncode == 128 + signum
    assert_nothing_left(driver)
    assert len(output.splitlines()) <= 6, output


def test_the_launcher_is_killed(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    driver = run.driver()
    os.killpg(run.launcher.pid, signal.SIGKILL)
    assert_nothing_left(driver)
    run.finish()


def test_the_keeper_is_killed(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    driver = run.driver()
    os.kill(run.keeper(), signal.SIGKILL)
    run.finish()
    assert run.launcher.returncode == 1
    assert_nothing_left(driver)


def test_ctrl_c_while_ray_starts(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    wait_until((tmp_path / "ray-start.log").exists, "Ray was not started")
    time.sleep(1.0)
    os.killpg(run.launcher.pid, signal.SIGINT)
    run.finish()
    assert run.launcher.returncode == 130
    assert not naming(str(tmp_path))
    assert not (tmp_path / "driver.json").exists()


def test_ray_dies(tmp_path: Path, start) -> None:
    run = start(tmp_path, "wait")
    driver = run.driver()
    keeper = run.keeper()
    [head] = [pid for pid in children(keeper) if "--head" in command_line(pid)]
    os.kill(head, signal.SIGKILL)
    output = run.finish()
    assert run.launcher.returncode == 1
    assert_seen("Ray's head is killed", output)
    assert_nothing_left(driver)


@pytest.mark.parametrize("which", ["an engine", "Ray's raylet", "Ray's GCS server"])
def test_a_process_is_killed_and_named(tmp_path: Path, start, which: str) -> None:
    run = start(tmp_path, "work")
    driver = run.driver()
    keeper = run.keeper()

    def watched() -> list[int]:
        return [pid for pid in watched_by(keeper) if pid > 0 and witness.role_of(psutil.Process(pid)) == which]

    wait_until(lambda: bool(watched()), f"the keeper does not watch {which}")
    victim = watched()[0]
    os.kill(victim, signal.SIGKILL)
    output = run.finish()
    assert run.launcher.returncode == 1
    assert f"failed       {which} was killed by SIGKILL (pid {victim})" in output, output
    if which == "Ray's raylet":
        assert_seen("Ray's raylet is killed", output)
    elif which == "Ray's GCS server":
        assert_seen("Ray's GCS server is killed", output)
    assert_nothing_left(driver)


def test_a_cluster_of_this_machine_may_be_joined(foreign: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", foreign.address)
    args = SimpleNamespace(vllm_num_engines=1, vllm_tensor_parallel_size=1)
    verdict = joined_cluster.look(cast(Config, SimpleNamespace(args=args, actor_ranks=1, gpus=2)))
    assert verdict.problems == []
    [warning] = verdict.warnings
    assert "is open" in warning


def test_a_cluster_that_we_join_is_left_running(tmp_path: Path, start, foreign: Cluster) -> None:
    run = start(tmp_path, "wait", RAY_ADDRESS=foreign.address)
    driver = run.driver()
    os.killpg(run.launcher.pid, signal.SIGINT)
    output = run.finish()
    assert run.launcher.returncode == 130
    assert "starting Ray" not in output
    # Detached processes with an empty environment belong to the other cluster's tree: only these are out of reach.
    assert not processes.marked(driver["run"])
    for pid in filter(is_alive, driver["pids"]):
        os.kill(pid, signal.SIGKILL)
