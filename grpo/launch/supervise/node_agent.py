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

SHM_SCAN_SECONDS = 0.5
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
        if code := starting.wait():  # it goes on in a child of its own
            raise RuntimeError(f"the agent of this node ended with exit code {code}")

        self._raylet = os.getppid()
        threading.Thread(target=self._meet, daemon=True).start()

    def _meet(self) -> None:
        # Ray's daemon ends once its head is silent, and its workers may outlive it.
        while os.getppid() == self._raylet:
            with self._lock:
                self._witness.meet(processes.of_run(self._run_id, os.getpid()))
            time.sleep(SCAN_SECONDS)
        os._exit(1)

    def answer(self) -> bool:
        """Return True, from a node that lives."""
        return True

    def deaths(self) -> list[dict[str, Any]]:
        """Return the deaths on this node since the last call, as fields of :class:`Death`."""
        with self._lock:
            return [asdict(death) for death in self._witness.last_deaths()]


class Agent:
    """The agent of a node. It ends when it has ended the run."""

    def __init__(self, run_id: str, folder: Path) -> None:
        self.run_id, self.folder = run_id, folder
        self.foreign = set(machine.SHM.iterdir()) if machine.SHM.is_dir() else set()
        self.shared_memory: set[Path] = set()
        self.watch = processes.SharedMemoryWatch()

    def run(self) -> None:
        """Wait until the pipe closes, then clean up."""
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), self.watch.fd], [], [])
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                break
            self.watch.drain()
            running = processes.of_run(self.run_id, os.getpid())
            self.shared_memory |= processes.shared_memory_of(process.pid for process in running)
            time.sleep(SHM_SCAN_SECONDS)  # one look for a burst of files
        self.clean_up()

    def clean_up(self) -> None:
        """End the run's processes on this node, and delete what they leave."""
        ended = processes.end_all(self.run_id, os.getpid(), GRACE_SECONDS)
        processes.remove_shared_memory((self.shared_memory | ended.shared_memory) - self.foreign)
        shutil.rmtree(self.folder, ignore_errors=True)


def main() -> None:
    """Go into the background and be the agent of this node."""
    run_id, folder = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ray's and the shell's; the pipe tells when to end
        signal.signal(signum, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    Agent(run_id, Path(folder)).run()


if __name__ == "__main__":
    main()
