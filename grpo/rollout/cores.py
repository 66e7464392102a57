"""Lets an engine's Ray actor and its core, which is vLLM's own process, die together.

If only the actor died, the core would keep the GPU. Each actor therefore notes its cores with Ray. If Ray restarts the
actor on the same node, it ends them first. If only the core died, vLLM would never answer pending calls to its workers.
The actor therefore ends too, and Ray reports its death to every caller.
"""

import json
import logging
import multiprocessing
import os
import select
import threading
from collections.abc import Sequence

import psutil
import ray
from ray.experimental import internal_kv

from grpo.stack.upstream.engine import AsyncLLM

logger = logging.getLogger("openrlhf.grpo.engine")

_NAME = "EngineCore"  # what vLLM calls a core as a child of multiprocessing. The process's title may be missing.
LIMIT = 60.0
_LOOK_MILLISECONDS = 1000
_NAMESPACE = b"grpo-cores"


def find_own_cores() -> list[psutil.Process]:
    """Return the cores of this process, the actor of an engine.

    Raises:
        RuntimeError: if it has none.
    """
    pids = [child.pid for child in multiprocessing.active_children() if child.name.startswith(_NAME)]
    if not pids:
        raise RuntimeError("vLLM started no core that this process knows")
    return [psutil.Process(pid) for pid in pids]


def end_with(llm: AsyncLLM, cores: Sequence[psutil.Process]) -> None:
    """End this process as soon as vLLM reports that its engine has failed, or one of the cores dies."""
    ends = select.poll()
    for core in cores:
        ends.register(os.pidfd_open(core.pid), select.POLLIN)  # leaves the exit code to vLLM, which waits as well

    def watch() -> None:
        while not llm.errored and not ends.poll(_LOOK_MILLISECONDS):
            pass
        logger.error("the core of this engine has died; the engine ends too")
        os._exit(1)

    threading.Thread(target=watch, name="watch of the core", daemon=True).start()


def remember(actor: str, cores: Sequence[psutil.Process]) -> None:
    """Note the cores of an actor."""
    known = json.dumps([(core.pid, core.create_time()) for core in cores])
    internal_kv._internal_kv_put(actor.encode(), known.encode(), namespace=_NAMESPACE)


def end(actor: str) -> list[int]:
    """End the cores that an actor noted before it died, and wait until they are gone; return their pids."""
    known = internal_kv._internal_kv_get(actor.encode(), namespace=_NAMESPACE)
    orphans = [core for pid, created in json.loads(known or "[]") if (core := _process(pid, created))]
    for core in orphans:
        core.kill()
    psutil.wait_procs(orphans, timeout=LIMIT)
    return [core.pid for core in orphans]


def own_actor() -> str | None:
    """Return the id of this process's actor; None outside of Ray."""
    # Outside of Ray, get_runtime_context() would start a cluster.
    actor: str | None = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    return actor


def _process(pid: int, created: float) -> psutil.Process | None:
    """Return a process, unless it has ended and its id belongs to another one."""
    try:
        process = psutil.Process(pid)
        return process if process.create_time() == created else None
    except psutil.NoSuchProcess:
        return None
