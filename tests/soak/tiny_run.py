"""One tiny run of a soak: its launcher, what that prints, its processes, and what it must not leave."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from grpo.launch.supervise import processes
from grpo.run.run_files import RunFiles
from grpo.stack.checkout import CHECKOUT
from grpo.stack.json_files import read_rows
from grpo.stack.machine import SHM

# One engine and one rank of the actor: at most 6 GB.
SETTINGS = {"NUM_ENGINES": "1", "ACTOR_GPUS": "1", "SAVE_STEPS": "1", "RESTARTS": "3", "MAX_CHECKPOINTS": "2"}
SIGNS = re.compile(
    r"^(failed|stopped|waiting|restarting|not restarting|not finished|refused)\b"
    r"|is suspended|no progress|: saving|ending the run"
)
START = "start"
TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TinyRun:
    """A run that is started, and continued by hand as often as it ends early.

    Args:
        folder: the run directory.
        steps: global steps.
        settings: variables of train_grpo.sh and keys, on top of this process's environment.

    Attributes:
        files: the run directory's.
        code: the exit code of the last part; None while it runs.
        resumes: how often it was continued by hand.
        seen: every process that it has had.
        temporary: its folders for temporary files.
    """

    def __init__(self, folder: Path, steps: int, settings: Mapping[str, str]) -> None:
        self.files = RunFiles(folder)
        self.code: int | None = None
        self.resumes = 0
        self.seen: set[psutil.Process] = set()
        self._foreign = set(SHM.iterdir())
        self.temporary: set[Path] = set()
        self._steps, self._settings = steps, {**SETTINGS, **settings}
        self._log = folder.with_suffix(".log")
        self._shown = 0
        self.started = time.monotonic()
        self._launcher = self._start("--run-dir", str(folder))

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", **self._settings}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [CHECKOUT / "train_grpo.sh", "--tiny", "--steps", str(self._steps), *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_reset_signals,
            )

    def resume(self) -> None:
        """Continue the run by hand, after its last part has ended."""
        self.resumes, self.code = self.resumes + 1, None
        how = "--resume" if self.files.is_run() else "--run-dir"  # it ended before it began
        self._launcher = self._start(how, str(self.files.folder))

    def is_running(self) -> bool:
        """Return whether a part of the run goes on; note what it starts."""
        self.code = self._launcher.poll()
        self._look()
        return self.code is None

    def list_processes(self) -> list[psutil.Process]:
        """Return the run's living processes but for its launcher: this process adopts those of a killed launcher."""
        mine = psutil.Process().children(recursive=True)
        return [process for process in mine if process.pid != self._launcher.pid and processes.is_alive(process)]

    def list_pids(self) -> set[int]:
        """Return the ids of the run's processes, launcher included."""
        return {self._launcher.pid, *(process.pid for process in self.list_processes())}

    def signal(self, signum: signal.Signals) -> bool:
        """Send a signal to the launcher, as a terminal does; return whether it runs."""
        if self._launcher.poll() is not None:
            return False
        self._launcher.send_signal(signum)
        return True

    def kill_everything(self) -> None:
        """End all processes at once, as a power cut does."""
        mine = self.list_processes()
        if self._launcher.poll() is None:
            self._launcher.kill()
        for process in mine:
            processes.send(process, signal.SIGKILL)
        self._launcher.wait()

    def find_left(self) -> list[str]:
        """Return what the run has left: processes, shared memory, temporary folders.

        Counts every new file under /dev/shm that no process uses, since nothing tells who created it. So nothing else
        may create files there meanwhile. Leaves out Python's semaphores (32 bytes each): one stays if its owner and its
        resource tracker are killed within half a second of its creation, before the keeper has seen whose it is.
        """
        alive = [f"process {process.pid}" for process in self.seen if processes.is_alive(process)]
        new = {path for path in SHM.iterdir() if not path.name.startswith("sem.mp-")}
        shared = new - self._foreign - processes.find_shared_memory(psutil.pids())
        return [*alive, *(str(path) for path in sorted(shared | self.temporary) if path.exists())]

    def read_phase(self) -> tuple[str, int]:
        """Return what the run is doing, and in which step."""
        rows = self.read_rows()
        try:
            noted = json.loads(self.files.phase.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return START, rows[-1]["step"] + 1 if rows else 1
        return str(noted["phase"]), int(noted["step"])

    def read_rows(self) -> list[dict]:
        """Return the lines of metrics.jsonl."""
        return read_rows(self.files.metrics)

    def read_news(self) -> list[str]:
        """Return the lines since the last call that tell of a fault, without what changes from run to run."""
        text = self._log.read_bytes().decode(errors="replace") if self._log.exists() else ""
        new, self._shown = text[self._shown :], len(text)
        lines = [line for line in new.splitlines() if SIGNS.search(line)]
        return [re.sub(r"\s+", " ", line.replace(str(self.files.folder), "DIR")).strip() for line in lines]

    def _look(self) -> None:
        for process in self.list_processes():
            self.seen.add(process)
            self._note_folders(process)

    def _note_folders(self, process: psutil.Process) -> None:
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            return
        folders = [Path(os.fsdecode(value[7:])) for value in variables if value.startswith(b"TMPDIR=")]
        self.temporary |= {folder.parent for folder in folders if folder.parent.name.startswith("grpo-")}


def _reset_signals() -> None:
    """Give a script's background job, which ignores Ctrl-C, the signals of a terminal."""
    for signum in TERMINAL:
        signal.signal(signum, signal.SIG_DFL)
