"""Runs of `./train_grpo.sh --tiny`, as a user starts them, and what they leave."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def train(*options: object, **variables: str) -> str:
    """Run the launcher with `--tiny`, without a key for the judge, to its end and return what it printed."""
    command = [ROOT / "train_grpo.sh", "--tiny", *map(str, options)]
    environment = {**os.environ, "GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", **variables}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, cwd="/")
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output[-5000:]
    return output


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def processes_of(run_dir: Path) -> dict[int, str]:
    """Ids and command lines of living processes that this run started: they inherited its directory."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"GRPO_RUN_DIR={run_dir}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().decode()
        except OSError:  # it has ended meanwhile
            continue
    return found
