"""A launcher with a real Ray cluster around a stand-in for the trainer."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervised import list_children, wait_until

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
from grpo.launch.supervise import driver_error
from grpo.stack.cluster import runtime_env
driver_error.install()
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
# The launcher looks at most twice a second who owns new shared memory.
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
        return self.launcher.communicate(timeout=150)[0]
