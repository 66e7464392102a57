"""Runs a function on several ranks, as Ray runs the actor's, and collects what they return."""

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.stack import rendezvous

start_process: Callable[..., Any] = subprocess.Popen  # tests have a faster one


def run_ranks(function: str, world: int, job: dict[str, Any], own_gpu: bool = False) -> list[dict[str, Any]]:
    """Call the function `module:function` with the job in a process of each rank; return their results, which JSON has.

    Args:
        own_gpu: whether each rank sees one GPU alone, as in Ray's actors.

    Raises:
        ValueError: if a rank fails, with the end of its log. The first that fails ends the others.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, len(os.sched_getaffinity(0)) // world)
    shared: dict[str, Any] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": 0, "WORLD_SIZE": world}
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name] or range(world)
    ranks: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as scratch:
        shared |= {"OMP_NUM_THREADS": threads, **rendezvous.variables(Path(scratch, "rendezvous"))}
        logs = [Path(scratch, f"{rank}.log") for rank in range(world)]
        try:
            for rank, file in enumerate(logs):
                own = shared | {"RANK": rank} | ({"CUDA_VISIBLE_DEVICES": visible[rank]} if own_gpu else {})
                environment = os.environ | {name: str(value) for name, value in own.items()}
                words = ["-m", "benchmarks.ranks", function, json.dumps(job), str(file.with_suffix(".json"))]
                with file.open("w") as log:
                    ranks.append(start_process([sys.executable, *words], env=environment, stdout=log, stderr=log))
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                time.sleep(0.1)
            codes = [rank.poll() for rank in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for code, file in zip(codes, logs, strict=True):
            if code:
                raise ValueError(f"{function} ended with {code}: {file.read_text()[-2000:]}")
        return [json.loads(file.with_suffix(".json").read_text()) for file in logs]


if __name__ == "__main__":
    name, given, out = sys.argv[1:]
    rendezvous.install()  # ranks meet through files, as those of a run
    module, _, function = name.partition(":")
    result = getattr(importlib.import_module(module), function)(json.loads(given))
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)  # a thread of the libraries may abort Python's own exit
