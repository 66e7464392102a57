"""A Ray cluster on this machine for a benchmark or a check."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from grpo.launch.supervise import processes

END_SECONDS = 30.0


@contextlib.contextmanager
def start_ray(
    folder: Path, cpus: int, gpus: int = 0, store: int | None = None, *, shows_logs: bool = False
) -> Iterator[None]:
    """Start Ray and connect to it; at the end, stop it and delete the shared memory that its processes still use.

    Ray kills vLLM's processes. They then leave sockets, and queues of up to 160 MiB and semaphores under /dev/shm. The
    core of an engine whose actor is killed lives on; it is found by a mark in its environment.

    Args:
        folder: for the files of Ray and the sockets of vLLM. The caller deletes it.
        cpus: and ``gpus``: how many Ray schedules; they need not exist.
        store: bytes of the object store; None takes Ray's default.
        shows_logs: whether the output of Ray's workers is printed.
    """
    import ray  # only now: it reads its variables when it is imported

    # Under a guard, all have the mark of its run, and it ends them.
    mark = "" if processes.RUN_ID_VARIABLE in os.environ else uuid.uuid4().hex
    variables = {"VLLM_RPC_BASE_PATH": str(folder)} | ({processes.RUN_ID_VARIABLE: mark} if mark else {})
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=store,
            log_to_driver=shows_logs,
            runtime_env={"env_vars": variables},
            _temp_dir=str(folder),
        )
        yield
    finally:
        mine = {*_find_started(Path(ray.__file__).parent), *(processes.find_marked(mark) if mark else ())}
        memory = processes.find_shared_memory(process.pid for process in mine)
        ray.shutdown()
        _, alive = psutil.wait_procs(mine, timeout=END_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=END_SECONDS)
        processes.remove_shared_memory(memory)


def _find_started(package: Path) -> list[psutil.Process]:
    """Return the children of this process that run a file of a package, and their descendants.

    Other children, such as multiprocessing's resource tracker, may live as long as this process.
    """
    mine: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if any(word.startswith(f"{package}/") for word in child.cmdline()):
                mine += [child, *child.children(recursive=True)]
    return mine
