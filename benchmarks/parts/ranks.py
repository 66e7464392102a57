"""Runs a worker of this folder on several ranks, as Ray runs the actor's, and collects their reports."""

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

LIMIT_SECONDS = 1800

start_process: Callable[..., Any] = subprocess.Popen  # tests have a faster one


def run_ranks(worker: str, world: int, job: dict[str, Any], own_gpu: bool = False) -> list[dict[str, Any]]:
    """Run a worker on `world` ranks and return each rank's report, by rank.

    Args:
        worker: a module of this folder, or the full name of another one.
        own_gpu: whether each rank sees one GPU alone, as in Ray's actors.

    Raises:
        ValueError: if a rank fails, with the end of its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // world)),
    }
    command = [sys.executable, "-m", worker if "." in worker else f"benchmarks.parts.{worker}"]
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    visible = visible or [str(number) for number in range(world)]
    with tempfile.TemporaryDirectory(prefix="bench-ranks-") as scratch:
        shared |= rendezvous.variables(Path(scratch, "rendezvous"))
        reports = [Path(scratch, f"{rank}.json") for rank in range(world)]
        ranks = []
        try:
            for rank, report in enumerate(reports):
                log = report.with_suffix(".log").open("w")
                environment = {**shared, "RANK": str(rank)}
                if own_gpu:
                    environment["CUDA_VISIBLE_DEVICES"] = visible[rank]
                arguments = [json.dumps(job), str(report)]
                ranks.append(
                    start_process([*command, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
            # The first rank that fails ends the others, which would wait for it.
            deadline = time.monotonic() + LIMIT_SECONDS
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                if time.monotonic() > deadline:
                    raise ValueError(f"{worker} was not done after {LIMIT_SECONDS} s")
                time.sleep(0.1)
            codes = [rank.poll() for rank in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for code, report in zip(codes, reports, strict=True):
            if code:
                raise ValueError(f"{worker} ended with {code}: {report.with_suffix('.log').read_text()[-2000:]}")
        return [json.loads(report.read_text(encoding="utf-8")) for report in reports]


def read_job() -> dict[str, Any]:
    """Return the job passed to `run_ranks`, in a worker. Its ranks then meet through files, as those of a run."""
    rendezvous.install()
    return json.loads(sys.argv[1])


def report(**values: Any) -> None:
    """Report this rank's results to `run_ranks`."""
    Path(sys.argv[2]).write_text(json.dumps(values), encoding="utf-8")
