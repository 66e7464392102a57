"""Runs a command under the launcher's supervisor: whatever happens, all that the command started ends with it.

Ray's processes and vLLM's cores have sessions of their own, and outlive the process that started them.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.launch.supervise import guard
from grpo.launch.supervise.supervisor import Job, supervise
from grpo.stack.checkout import CHECKOUT

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
LOG = "driver.log"


def run(command: Sequence[str], folder: Path, seconds: float) -> int | None:
    """Run a command in the checkout, and end all that it started.

    Args:
        folder: gets the command's output as LOG.
        seconds: after which the command is ended.

    Returns:
        The command's exit code, 128 + n if signal n ended it; None if it had to be ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.gpu_check.kept", str(folder), str(GRACE_SECONDS), *command],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.terminate()
        process.wait()


def _supervise() -> int:
    folder, grace, *command = sys.argv[1:]
    return supervise(Job(command, Path(folder), grace=float(grace))).code


if __name__ == "__main__":
    guard.die_with_parent()
    sys.exit(guard.guard(_supervise))
