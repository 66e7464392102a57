"""Processes of a run that start with the driver's imports: forks of a copy of it, instead of new interpreters.

PyTorch, DeepSpeed and vLLM take 5 seconds of CPU time and half a GB in each process that imports them, and a run has
five. On the CPU stack the driver forks a copy of itself after its imports, and the copy acts as the fork server of
Python's multiprocessing. Ray starts its workers by this file, run as a script; what a worker spawns is forked too, such
as an engine's core. Without a server, all of them start as usual.

GPU stacks fork nothing: a library that has touched a device must not be forked.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from multiprocessing import context, forkserver, reduction, resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VARIABLE = "GRPO_ZYGOTE"  # the path of the server's socket
FIRST_JOB = "01000000"  # the driver's, in a cluster of its own
_IMPORTS = ("grpo.train.worker", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")  # of most of the forks
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="  # what Ray tells its own set-up script

# Private parts of the standard library, alike in Python 3.11 and 3.12
_server: Any = forkserver._forkserver
_tracker: Any = resource_tracker._resource_tracker
_contexts: Any = context


def keep_ids_apart() -> None:
    """Leave Ray's generator of random ids unused before the forks: they would share its state and draw equal ids.

    Two engines would then give two calls of the judge the same id, and Ray would end the judge. Call this before any
    class becomes an actor class: of all that is imported, only that draws an id.
    """
    if os.environ.get(VARIABLE):
        import ray.actor
        from ray import ActorClassID

        own = SimpleNamespace(from_random=lambda: ActorClassID(os.urandom(ActorClassID.size())))
        ray.actor.ActorClassID = own  # type: ignore[misc, assignment]


def start() -> None:
    """Fork the server, if the launcher has named its socket. It ends with this process. Each fork runs in this call."""
    if not (path := os.environ.get(VARIABLE)):
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    gc.freeze()  # a collection writes to all objects, and so copies the pages that processes share
    read_end, write_end = os.pipe()  # whose end tells the server that this process has ended
    if os.fork():
        os.close(read_end)
        return
    os.close(write_end)
    _share_titles()
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    forkserver.main(listener.detach(), read_end, [])


def _share_titles() -> None:
    """Set the server's title, with Ray's library for titles, which vLLM gets, too: its own cannot be the second.

    A library searches for the arguments before the first variable, and overwrites them with the variables that follow
    one another. These must stay, since the launcher finds the run's processes by them.
    """
    import setproctitle
    from ray import _raylet

    for name in list(os.environ)[1:]:
        os.environ[name] = os.environ[name]  # in another place
    _raylet.setproctitle("zygote")  # type: ignore[attr-defined]
    setproctitle.setproctitle = _raylet.setproctitle  # type: ignore[attr-defined]


class Fork(context.ForkServerProcess):
    """A process as `spawn` would start it: with environment, standard output and error of the one who asks for it."""

    variables: dict[str, str]
    output: list[Any]

    def __getstate__(self) -> dict[str, Any]:
        """Return what the new process gets."""
        return vars(self) | {"variables": dict(os.environ), "output": [reduction.DupFd(number) for number in (1, 2)]}

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """Run in the new process."""
        import numpy
        import torch

        for number, copy in enumerate(self.output, 1):
            os.dup2(file := copy.detach(), number)
            os.close(file)
        os.environ.clear()
        os.environ.update(self.variables)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # Ray sets it before an actor's imports
        numpy.random.seed()  # not the state that all share
        _use_server()
        _contexts._concrete_contexts["spawn"] = _contexts._concrete_contexts["forkserver"]
        return super()._bootstrap(parent_sentinel)  # type: ignore[misc]


def _use_server() -> None:
    """Let this process fork from the server that runs, and never start one."""
    _contexts.ForkServerContext.Process = Fork
    _server.ensure_running = lambda: None


def _run_script(path: str) -> None:
    _tracker._fd = None  # it starts one when it needs one
    runpy.run_path(path, run_name="__main__")


def start_worker(words: list[str]) -> None:
    """Do what Ray's set-up script does: become a worker, or end once it is forked.

    Args:
        words: the path of the worker's script, and its arguments.
    """
    for word in words:
        if word.startswith(_CONTEXT):
            os.environ |= json.loads(word.removeprefix(_CONTEXT)).get("env_vars") or {}
    sys.argv[:] = [word for word in words if not word.startswith((_CONTEXT, _LANGUAGE))]
    _server._forkserver_address = os.environ.get(VARIABLE, "")
    # Not a resource tracker of this process, which ends
    _server._forkserver_alive_fd = _tracker._fd = os.open(os.devnull, os.O_RDWR)
    if os.environ.get("RAY_JOB_ID") == FIRST_JOB:  # what the server's Ray takes for its job
        _use_server()
        with contextlib.suppress(OSError):  # there is no server
            Fork(target=_run_script, args=(words[0],)).start()
            os._exit(0)
    os.execv(sys.executable, [sys.executable, str(Path(words[0]).with_name("setup_worker.py")), *words])


if __name__ == "__main__":
    del sys.modules["__main__"].__file__  # a fork would run it again
    from grpo.stack import zygote

    zygote.start_worker(sys.argv[1:])
