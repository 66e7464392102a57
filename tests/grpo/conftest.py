import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_ranks(tmp_path):
    """Run a script of this folder in `world` processes with a gloo group, as Ray actors are in a run."""

    def run(world: int, *arguments: object, script: str = "ranks.py") -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        shared = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DS_ACCELERATOR": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
        }
        ranks = []
        for rank in range(world):
            log = (tmp_path / f"rank{rank}.log").open("w")
            ranks.append(
                subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT)
            )
        try:
            codes = [rank.wait(timeout=400) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        logs = "\n".join((tmp_path / f"rank{rank}.log").read_text()[-3000:] for rank in range(world))
        assert codes == [0] * world, logs
        return logs

    return run
