"""What a run owns on this machine: its processes, its folder, and its files under /dev/shm."""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo.launch.supervise import base_dir, processes
from grpo.stack.checkout import CHECKOUT
from grpo.stack.machine import SHM

_SCAN_SECONDS = 0.5


class Owned:
    """Starts the processes of a run; :meth:`end` ends them and deletes the rest. Needs the id that a guard sets.

    Attributes:
        folder: for sockets and temporary files; deleted at the end.
        exits: exit codes of ended processes by pid, -n after signal n.
    """

    def __init__(self) -> None:
        self.run_id = os.environ[processes.RUN_ID_VARIABLE]
        self.folder, self._held = base_dir.make()
        self.exits: dict[int, int] = {}
        self._foreign = self._names = set(SHM.glob("*"))  # files from before the run are never deleted
        self._memory: set[Path] = set()
        self._next_scan = 0.0

    def spawn(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
        """Start a command in a session of its own, in the checkout; return its pid. Its output goes to `log`."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        variables = {**os.environ, **environment, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child.returncode = 0  # look collects every child, so Popen must not look for this one
        return child.pid

    def look(self) -> None:
        """Collect ended processes, and look whose new files under /dev/shm are while their owners live.

        A killed process leaves its segments behind, and nothing then tells whose they are. Segments from its last half
        second can remain: an unused file without a known owner is not deleted.
        """
        self.exits.update(processes.reap())
        if time.monotonic() < self._next_scan:
            return
        before, self._names = self._names, set(SHM.glob("*"))
        if self._names - before:
            found = processes.find_shared_memory(process.pid for process in processes.find_run_processes(self.run_id))
            self._memory |= found - self._foreign
            base_dir.note_shared_memory(self.folder, self._memory)
            self._next_scan = time.monotonic() + _SCAN_SECONDS

    def end(self, grace: float) -> set[int]:
        """End all processes, SIGKILL after `grace` seconds; return those that still run."""
        left, memory = processes.end_all(self.run_id, grace)
        processes.remove_shared_memory(self._memory | (memory - self._foreign))
        return left

    def delete(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._held)
