"""Ray for a benchmark leaves no shared memory, whatever its processes do with theirs."""

import tempfile
from pathlib import Path
from typing import Any

from scripts import local_ray


def test_shared_memory_of_rays_processes_is_deleted():
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, local_ray.started(Path(folder), cpus=1):
        engine, name = engine_with_a_segment()  # Ray ends an actor that nobody refers to
        file = Path("/dev/shm", name)
        assert file.exists()
    assert engine and not file.exists()


def engine_with_a_segment() -> tuple[Any, str]:
    import ray

    @ray.remote(num_cpus=0)
    class Engine:
        def __init__(self):
            from multiprocessing import resource_tracker, shared_memory

            self.segment = shared_memory.SharedMemory(create=True, size=1000)
            resource_tracker.unregister(self.segment._name, "shared_memory")  # as if the tracker had been killed, too

        def name(self):
            return self.segment.name

    engine = Engine.remote()
    return engine, ray.get(engine.name.remote())
