"""Ends what a run started on another node than the launcher's, whatever happens to the others.

The keeper does this on the launcher's node. On each other node there are two processes:

- an actor of Ray, which takes no resources. Ray ends it with the driver, the launcher's node, or the cluster.
- the agent, which that actor starts, in its own session and out of Ray's reach. It holds the other end of a pipe. When
  the pipe closes, the agent ends every process of the run on this node, and deletes its shared memory and its folder.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.launch.supervise import processes
from grpo.launch.supervise.witness import SCAN_SECONDS, Witness
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT

GRACE_SECONDS = 5.0


class NodeAgent:
    """The actor: it starts the agent of its node, and notes which of the run's processes die there.

    Args:
        run_id: of the run, in the environment of each of its processes.
        folder: for the run's temporary files on this node.
    """

    def __init__(self, run_id: str, folder: str) -> None:
        self._run_id, self._witness, self._lock = run_id, Witness(), threading.Lock()
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        (Path(folder) / "tmp").mkdir(mode=0o700, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != processes.RUN_ID_VARIABLE}
        starting = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo.launch.supervise.node_agent", run_id, folder],
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._pipe = starting.stdin
        if code := starting.wait():  # its work continues in a child of its own
            raise RuntimeError(f"the agent of this node ended with exit code {code}")

        self._raylet = os.getppid()
        threading.Thread(target=self._watch_processes, daemon=True).start()

    def _watch_processes(self) -> None:
        # Ray's daemon ends once its head is silent, and its workers may outlive it.
        while os.getppid() == self._raylet:
            with self._lock:
                self._witness.watch_new(processes.find_run_processes(self._run_id, os.getpid()))
            time.sleep(SCAN_SECONDS)
        os._exit(1)

    def answer(self) -> bool:
        """Return True, from a node that lives."""
        return True

    def deaths(self) -> list[dict[str, Any]]:
        """Return the deaths on this node since the last call, as fields of :class:`Death`."""
        with self._lock:
            return [asdict(death) for death in self._witness.last_deaths()]


def end_with_pipe(run_id: str, folder: Path) -> None:
    """Be the agent of this node: once the pipe closes, end the run's processes, and delete what they leave."""
    foreign = set(machine.SHM.iterdir()) if machine.SHM.is_dir() else set()
    memory = processes.SharedMemoryWatch(run_id)
    while not select.select([sys.stdin], [], [], processes.SHM_SCAN_SECONDS)[0]:
        memory.look()
    ended = processes.end_all(run_id, os.getpid(), GRACE_SECONDS)
    processes.remove_shared_memory((memory.files | ended.shared_memory) - foreign)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Go into the background as the agent of this node."""
    run_id, folder = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ray's and the shell's; the pipe tells when to end
        signal.signal(signum, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    end_with_pipe(run_id, Path(folder))


if __name__ == "__main__":
    main()
