"""Python programs that start in a moment: forked from a process that has imported their libraries.

A rank of a trainer imports PyTorch, DeepSpeed and vLLM for eight seconds of CPU time, and most tests need it for one.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import IO
from unittest import mock

LIBRARIES = ["pytest", "vllm.entrypoints.llm", "openrlhf.trainer.ray.ppo_actor", "grpo.checkpoint.saving"]
# Read while a library is imported.
SETTINGS = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LIBRARIES)


class Program:
    """A running program, with the methods of `subprocess.Popen` that the tests need.

    Args:
        command: `[python, FILE, ...]` or `[python, "-m", MODULE, ...]`, as for a new interpreter.
        env: its whole environment.
        stdout, stderr: open files.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdout: IO, stderr: IO | int) -> None:
        with mock.patch.dict(os.environ, SETTINGS):
            forkserver.ensure_running()
        errors = stdout.name if stderr == subprocess.STDOUT else stderr.name
        self._process = _context.Process(target=_run, args=(list(command[1:]), dict(env), stdout.name, errors))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def run(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` with `capture_output` does."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder, name) for name in ("stdout", "stderr")]
        with names[0].open("w") as stdout, names[1].open("w") as stderr:
            program = Program(command, os.environ, stdout, stderr)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess(command, code, *(name.read_text() for name in names))


def _run(words: list[str], environment: dict[str, str], stdout: str, stderr: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, stdout), (2, stderr)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "0")) or len(os.sched_getaffinity(0)))
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
