"""Stopping the Ray of a benchmark deletes its shared memory and ends no other process."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.sync import start_ray


@pytest.fixture
def other_child() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process in the home folder that Ray's images have."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "/home/ray/"])
    yield child
    child.kill()
    child.wait()


def test_only_rays_processes_end_and_their_shared_memory_is_deleted(other_child):
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, start_ray(Path(folder), cpus=1):
        engine, name, sockets, core = start_engine_with_segment()  # Ray ends an actor that nobody refers to
        file = Path("/dev/shm", name)
        assert file.exists()
        assert sockets == folder, "vLLM's sockets are deleted with the folder"
    assert engine and not file.exists()
    assert not psutil.pid_exists(core), "it outlives the engine, which is killed"
    assert other_child.poll() is None


def start_engine_with_segment() -> tuple[Any, str, str, int]:
    import ray

    @ray.remote(num_cpus=0)
    class Engine:
        def __init__(self):
            from multiprocessing import resource_tracker, shared_memory

            self.segment = shared_memory.SharedMemory(create=True, size=1000)
            resource_tracker.unregister(self.segment._name, "shared_memory")  # as if the tracker had been killed, too

        def name(self):
            return self.segment.name

        def core(self):
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True).pid

        def sockets(self):
            from vllm import envs

            return envs.VLLM_RPC_BASE_PATH

    engine, lost = Engine.remote(), Engine.remote()
    core = ray.get(lost.core.remote())
    ray.kill(lost)
    return engine, ray.get(engine.name.remote()), ray.get(engine.sockets.remote()), core
