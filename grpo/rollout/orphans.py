"""Ends what an engine leaves that dies: vLLM's core is a process of its own, which lives on and keeps the GPU.

Each engine's actor notes its cores with Ray. If Ray starts the actor again, on the same node, it ends them first.
"""

import json
import os

import psutil
import ray
from ray.experimental import internal_kv

CORE = "VLLM::EngineCore"  # the title that vLLM gives
LIMIT = 60.0
_NAMESPACE = b"grpo-cores"


def remember(actor: str) -> None:
    """Note the cores of this process, the actor of an engine."""
    cores = [child for child in psutil.Process(os.getpid()).children() if _title(child).startswith(CORE)]
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
    actor: str | None = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
    return actor


def _process(pid: int, created: float) -> psutil.Process | None:
    """Return a process, unless it has ended and its id belongs to another one."""
    try:
        process = psutil.Process(pid)
        return process if process.create_time() == created else None
    except psutil.NoSuchProcess:
        return None


def _title(process: psutil.Process) -> str:
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""
