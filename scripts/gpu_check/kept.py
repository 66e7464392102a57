"""Runs a command under the launcher's keeper: whatever happens, all that the command started ends with it.

Ray's processes and vLLM's cores have sessions of their own, and outlive the process that started them. The keeper
(:mod:`grpo.launch.supervise.keeper`) finds them. It also ends them if this process is killed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.launch.supervise import base_dir, keeper
from grpo.launch.supervise.keeper import Job
from grpo.stack.checkout import CHECKOUT

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
_CLEAN_UP_SECONDS = 60.0  # that a keeper may take besides, before it is killed
LOG = "driver.log"


def run(command: Sequence[str], folder: Path, seconds: float) -> int | None:
    """Run a command in the checkout, and end all that it started.

    Args:
        folder: gets the command's output as LOG.
        seconds: after which the command is ended.

    Returns:
        The command's exit code; None if it had to be ended.
    """
    base, held = base_dir.make()
    job = Job(list(command), str(folder), str(base), GRACE_SECONDS)
    events = folder / "events"
    with events.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "grpo.launch.supervise.keeper"],
            cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=[held],
        )  # fmt: skip
    try:
        assert process.stdin
        process.stdin.write(job.dump().encode() + b"\n")
        process.stdin.flush()
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process, job)
        os.close(held)
    return _code(events)


def _end(process: subprocess.Popen[bytes], job: Job) -> None:
    """Close the keeper's input, which ends the command. If the keeper is dead, do its work."""
    assert process.stdin
    process.stdin.close()
    try:
        process.wait(GRACE_SECONDS + _CLEAN_UP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.returncode:
        keeper.clean_up(job, process.pid, base_dir.shared_memory(Path(job.base_dir)))


def _code(events: Path) -> int:
    """Return the exit code that the keeper has reported.

    Raises:
        RuntimeError: if it was killed before.
    """
    printed = events.read_text(encoding="utf-8", errors="replace")
    for line in printed.splitlines():
        if line.startswith("{") and (event := json.loads(line))["event"] == "driver ended":
            return int(event["code"])
    raise RuntimeError(f"the keeper of the command was killed: {printed[-500:]}")
