"""Ray for a benchmark leaves no shared memory, whatever its processes do with theirs."""

import tempfile
from pathlib import Path

from scripts import local_ray


def test_shared_memory_of_rays_processes_is_deleted():
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, local_ray.started(Path(folder), cpus=1):
        file = Path("/dev/shm", segment_of_an_actor())
        assert file.exists()
    assert not file.exists()


def segment_of_an_actor() -> str:
    import ray

    @ray.remote(num_cpus=0)
    class Engine:
        def __init__(self):
            from multiprocessing import resource_tracker, shared_memory

            self.segment = shared_memory.SharedMemory(create=True, size=1000)
            resource_tracker.unregister(self.segment._name, "shared_memory")  # as if it were killed, too

        def name(self):
            return self.segment.name

    engine = Engine.remote()
    return ray.get(engine.name.remote())
