#!/usr/bin/env python3
"""Processes of a run that begin with the driver's imports: forked from a copy of it, in place of imports of their own.

A process that imports PyTorch, DeepSpeed and vLLM takes 5 seconds of CPU time and 0.6 GB for it, and a run has five. On
the CPU stack the driver forks a copy of itself after its imports: the zygote. This file, run as a script, takes the
place of `python` for Ray's workers and for what they spawn, such as an engine's core. It lets the zygote fork a process
with its own arguments, environment and open files, passes signals on to it, and ends with it. Without a zygote it
starts Python as usual.

GPU stacks fork nothing: a library that has touched a device must not be forked.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "GRPO_ZYGOTE"  # the path of its socket
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="  # what Ray tells its own set-up script
_DIE_WITH_PARENT = 1  # of prctl(2)
_LENGTH, _FILES = 8, 253  # bytes of a number, and open files of a request at most
_FREE = 512  # file numbers from here on are used by nobody


def start(imports: Sequence[str]) -> None:
    """Fork the zygote, if the launcher has named its socket. Each process that it forks runs and ends in this call.

    Args:
        imports: modules that the driver does not need, and several of the others do.
    """
    if not (path := os.environ.get(VARIABLE)):
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    if os.fork():
        listener.close()
        return
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    for name in imports:
        importlib.import_module(name)
    gc.freeze()  # a collection would write to every object, and copy the pages that all share
    _become(*_serve(listener))
    sys.exit()


def list_ray_variables(pids: Iterable[int]) -> dict[str, str]:
    """Return what Ray tells its workers in their environment, for the driver: Ray reads it once, when it is imported.

    Args:
        pids: of the run's processes. The driver will be the cluster's first job.
    """
    variables = {"RAY_JOB_ID": "01000000"}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace") == "raylet\n":
                variables["RAY_RAYLET_PID"] = str(pid)
    return variables


def _serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each request; return in that process, with the request and its open files."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        asker = listener.accept()[0]
        length, files, *_ = socket.recv_fds(asker, _LENGTH, _FILES)
        request = asker.recv(int.from_bytes(length), socket.MSG_WAITALL)
        if not os.fork():
            break
        for file in (asker.detach(), *files):
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    asker.sendall(os.getpid().to_bytes(_LENGTH))
    # It closes when this process ends, which tells the asker.
    other = socket.socket(fileno=fcntl.fcntl(asker, fcntl.F_DUPFD_CLOEXEC, _FREE))
    asker.close()
    threading.Thread(target=_end_with, args=[other], name="watch of the asker", daemon=True).start()
    return json.loads(request), files


def _end_with(asker: socket.socket) -> None:
    """End this process as soon as the one who asked for it is killed."""
    asker.recv(1)
    os._exit(1)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run in this process what was asked for."""
    import multiprocessing

    import numpy
    import torch

    # A library that sets titles must set its first one before the environment moves. vLLM has another one than Ray.
    library = importlib.import_module("setproctitle" if request["code"] else "ray._raylet")
    library.setproctitle(" ".join(request["words"]))
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FREE) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # as Ray sets it before an actor's imports
    numpy.random.seed()  # not the state that all share
    multiprocessing.set_executable(__file__)
    sys.argv = request["words"]
    if sys.argv[0] == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(request["code"], vars(main))
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _take_place(words: list[str]) -> NoReturn:
    """Be the process that the words describe, as `python WORDS` or Ray's set-up script would: let it be forked."""
    asker = socket.socket(socket.AF_UNIX)
    files = [int(name) for name in os.listdir("/proc/self/fd") if _is_open(int(name)) and int(name) != asker.fileno()]
    try:
        asker.connect(os.environ.get(VARIABLE, ""))
    except OSError:
        asker.close()
        setup = [] if "-c" in words else [str(Path(words[0]).with_name("setup_worker.py"))]
        os.execv(sys.executable, [sys.executable, *setup, *words])
    environment, code = dict(os.environ), ""
    if "-c" in words:  # multiprocessing, after options of the interpreter
        words = words[words.index("-c") :]
        code = words.pop(1)
    for word in words:
        if word.startswith(_CONTEXT):
            environment |= json.loads(word.removeprefix(_CONTEXT)).get("env_vars") or {}
    words = [word for word in words if not word.startswith((_CONTEXT, _LANGUAGE))]
    asked = {"words": words, "code": code, "environment": environment, "folder": os.getcwd(), "files": files}
    request = json.dumps(asked).encode()
    socket.send_fds(asker, [len(request).to_bytes(_LENGTH)], files)
    asker.sendall(request)
    child = int.from_bytes(asker.recv(_LENGTH, socket.MSG_WAITALL))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda came, _: os.kill(child, came))
    with contextlib.suppress(ConnectionError):
        asker.recv(1)  # returns when the process has ended
    sys.exit()


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _take_place(sys.argv[1:])
