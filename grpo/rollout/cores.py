"""Ends an engine's Ray actor when its core dies, which is vLLM's own process.

vLLM never answers pending calls to the workers of a core that has died. Ray reports the actor's death to every caller.
"""

import logging
import multiprocessing
import os
import select
import threading
from collections.abc import Sequence

import psutil

from grpo.stack.upstream.engine import AsyncLLM

logger = logging.getLogger("openrlhf.grpo.engine")

_NAME = "EngineCore"  # what vLLM calls a core as a child of multiprocessing. The process's title may be missing.
_LOOK_MILLISECONDS = 1000


def end_with_core(llm: AsyncLLM) -> None:
    """End the process of an engine's actor as soon as its core dies. Evaluations and tests have engines without one."""
    if own_actor():
        end_with(llm, find_own_cores())


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


def own_actor() -> str | None:
    """Return the id of this process's actor; None outside of Ray."""
    # Outside of Ray, get_runtime_context() would start a cluster.
    import ray  # only here: who starts Ray sets its variables before

    actor: str | None = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    return actor
