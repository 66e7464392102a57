"""Ranks meet in a private file: no port is open for it, by either of the ways in which callers name a meeting."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.stack import rendezvous
from grpo.stack.cluster import free_port

# Takes seconds, but minutes in parallel with the real stack on two cores.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
RANK = """
import json, os, sys
import psutil, torch, torch.distributed as dist
from grpo.stack import rendezvous
rendezvous.install()
methods, rank, count = sys.argv[1].split(), int(sys.argv[2]), int(sys.argv[3])
for method in methods:
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=count)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    dist.barrier(dist.new_group(list(range(count))))
    listening = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    print(json.dumps({"total": total.item(), "listening": listening}), flush=True)
    dist.barrier()
    if method != methods[-1]:
        dist.destroy_process_group()
os._exit(0)
"""


def meet(folder: Path, methods: str, port: int, ranks: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Start ranks that meet by methods of torch's in our folder, and return how they ended."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    variables |= rendezvous.variables(folder)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, methods, str(rank), str(ranks)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = []
    for process in started:
        output, errors = process.communicate(timeout=500)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, output, errors))
    return ended


def test_ranks_meet_without_an_open_port(tmp_path: Path) -> None:
    folder, port, other = tmp_path / "meeting", free_port(), free_port()
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", other)):
        ended = meet(folder, f"env:// tcp://127.0.0.1:{other}", port)  # strangers have the ports; they are only names
    for rank in ended:
        assert rank.returncode == 0, rank.stderr
        both = [json.loads(line) for line in rank.stdout.splitlines() if line.startswith("{")]
        assert len(both) == 2
        for said in both:
            assert said["total"] == 3.0 and set(said["listening"]) == {"127.0.0.1"}, "gloo listens, on loopback"
    assert folder.stat().st_mode & 0o777 == 0o700
