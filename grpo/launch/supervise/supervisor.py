"""Starts Ray and the driver; follows the driver to its end; ends everything that it started."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grpo.checkpoint.on_request import SaveRequest
from grpo.launch import signals
from grpo.launch.hangs_and_onsets import HangWatch
from grpo.launch.supervise import driver_error, processes, ray_head
from grpo.launch.supervise.ray_head import RayHead
from grpo.stack import machine, rendezvous, zygote
from grpo.stack.checkout import CHECKOUT, is_cpu_stack
from grpo.stack.command import format_count
from grpo.stack.problem import Problem
from grpo.stack.secrets import redact

RAY_LOG = "ray-start.log"
FAILED, STOPPED = 1, 3  # exit codes: the run failed; the parity gate stopped it
_TICK, _TAIL_LINES = 0.2, 30


@dataclass(frozen=True)
class End:
    """How a run ended."""

    code: int  # the driver's exit code; 128 + n if signal n ended the driver or the launcher; 1 if Ray failed
    cause: Problem | None = None  # why it failed; None if it did not, or if a signal to the launcher ended it


@dataclass(frozen=True)
class Job:
    """A driver and what it needs."""

    driver: Sequence[str]  # the command; it runs in the checkout
    log_dir: Path  # an existing folder for the output of the driver and of Ray
    ray: RayHead | None = None  # the resources of the run's own cluster; None starts none
    environment: Mapping[str, str] = field(default_factory=dict)  # variables on top of this process's own
    progress: Callable[[], list[str]] = list  # returns the lines to show since its last call
    grace: float = 10.0  # seconds between SIGTERM and SIGKILL
    folders: Mapping[str, Path] = field(default_factory=dict)  # that the run writes to, by what the user calls them
    watch: HangWatch | None = None  # tells what the run is doing, and whether it hangs
    saving: SaveRequest | None = None  # asks for a checkpoint before a Ctrl-C or SIGTERM ends the run
    saving_seconds: float = 0.0  # that this may take


def supervise(job: Job) -> End:
    """Run a driver to its end, and leave no process of it behind. Needs a guard."""
    return _Supervisor(job).run()


class _Over(Exception):
    """A signal ends the run; or what is wrong and the log with the details, if the run cannot go on."""


class _Supervisor:
    def __init__(self, job: Job) -> None:
        self.job, self.run_id, self.own = job, os.environ[processes.RUN_ID_VARIABLE], processes.RunFolder()
        kept, temporary = job.log_dir / driver_error.KEPT, self.own.path / "tmp"
        kept.unlink(missing_ok=True)  # of an earlier attempt
        temporary.mkdir()
        self.environment = {**job.environment, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        self.environment[driver_error.FILE_VARIABLE] = str(kept.absolute())
        own = {"the logs": job.log_dir, "temporary files": self.own.path, "shared memory": machine.SHM}
        self.folders = own | dict(job.folders)
        self.started: list[int] = []  # the pids of Ray and the driver
        self.ray: subprocess.Popen[bytes] | None = None  # which must live as long as the driver
        self.signals: list[int] = []  # that the launcher got
        self.save_until: float | None = None

    def run(self) -> End:
        """Start everything, follow it until the end, clean up, and return how the run ended."""
        code, problem, log = FAILED, None, driver_error.LOG
        before = signals.handle(lambda number, _: self.signals.append(number))
        try:
            if self.job.ray:
                self._start_ray(self.job.ray)
            code = self._follow_driver()
            problem = driver_error.find(self.job.log_dir, self.folders, code) if code else None
        except _Over as over:
            if over.args:
                what, log = over.args
                problem = driver_error.find_full_disk(self.folders) or Problem(what, "")
        finally:
            self._clean_up()
            signals.restore(before)
        return self._end(code, problem, log)

    def _start_ray(self, head: RayHead) -> None:
        """Start Ray; the driver gets its address."""
        gpus = machine.stand_ins(head.num_gpus) if is_cpu_stack() else format_count(head.num_gpus, "GPU")
        self._show(f"starting Ray ({gpus})")
        started, file, address = time.monotonic(), self.own.path / ray_head.ADDRESS, ""
        self.environment |= ray_head.variables() | rendezvous.variables(self.own.path / "rendezvous")
        if is_cpu_stack():
            self.environment[zygote.VARIABLE] = str(self.own.path / "zygote")
        self.ray = self._spawn(ray_head.start_command(head, self.own.path), RAY_LOG)
        while not address:
            self._tick()
            address = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
            if time.monotonic() - started > ray_head.START_SECONDS:
                raise _Over(f"Ray did not start within {ray_head.START_SECONDS:.0f} s", RAY_LOG)
        self.environment["RAY_ADDRESS"] = address
        if is_cpu_stack():  # Ray tells its workers, and reads it once, when it is imported: the driver's forks share it
            pids = {child.name(): str(child.pid) for child in psutil.Process(self.ray.pid).children()}
            self.environment |= {"RAY_RAYLET_PID": pids.get("raylet", ""), "RAY_JOB_ID": zygote.FIRST_JOB}
        self._show(f"Ray is up at {address} after {time.monotonic() - started:.0f} s")

    def _spawn(self, command: Sequence[str], log: str) -> "subprocess.Popen[bytes]":
        """Start a command in its own session, which Ctrl-C does not reach. Its output goes to a log."""
        with (self.job.log_dir / log).open("ab") as output:
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": CHECKOUT}
            process = subprocess.Popen(command, env=os.environ | self.environment, start_new_session=True, **how)
        self.started.append(process.pid)
        return process

    def _follow_driver(self) -> int:
        """Run the driver; return its exit code."""
        driver = self._spawn(self.job.driver, driver_error.LOG)
        self._show(f"starting engines and actor; log: {self.job.log_dir / driver_error.LOG}")
        while (code := driver.poll()) is None:
            self._tick()
            if self.job.watch and (hang := self.job.watch.hang()):
                raise _Over(hang, driver_error.LOG)
        until = time.monotonic() + ray_head.NOTICE_SECONDS
        is_silent = code in (FAILED, -signal.SIGABRT) and driver_error.read(self.job.log_dir) is None
        while self.ray and is_silent and time.monotonic() < until:  # Ray ends soon, if it is the cause
            self._tick()
        return code

    def _tick(self) -> None:
        """Wait a moment, and show progress. Raises what ends the run."""
        if self.signals and self._has_saved():
            raise _Over
        time.sleep(_TICK)
        processes.reap_orphans(self.started)
        self.own.note_shared_memory(self.run_id)
        self._show(*self.job.progress())
        if self.ray and (code := self.ray.poll()) is not None:
            raise _Over(f"Ray {driver_error.describe_end(code)} (pid {self.ray.pid})", RAY_LOG)

    def _has_saved(self) -> bool:
        """Let the first Ctrl-C or SIGTERM save the last completed step; return whether the run ends now."""
        request, watch, first = self.job.saving, self.job.watch, self.signals[0]
        is_at_once = len(self.signals) > 1 or first not in (signal.SIGINT, signal.SIGTERM) or processes.is_lost()
        if is_at_once or not (request and watch and watch.has_new_steps()):
            return True
        if self.save_until is None:
            request.ask()
            self.save_until = time.monotonic() + self.job.saving_seconds
            again = "; press Ctrl-C again to stop immediately" if first == signal.SIGINT else ""
            what = f"saving the last completed step, for at most {self.job.saving_seconds:.0f} s"
            self._show(f"{signals.get_name(first)}: {what}{again}")
        if (is_open := request.is_open()) and time.monotonic() < self.save_until:
            return False
        why = "timed out" if is_open else request.failure()
        self._show(f"not saved: {why}" if why else "saved")
        return True

    def _clean_up(self) -> None:
        if self.signals:
            self._show(f"{signals.get_name(self.signals[0])}: ending the run (at most {self.job.grace:.0f} s)")
        left = processes.end_all(self.run_id, self.job.grace, self.own)
        with contextlib.suppress(OSError):  # a full disk, or no Ray
            kept = self.job.log_dir / time.strftime("ray-%Y%m%d-%H%M%S")
            shutil.copytree(self.own.path / ray_head.LOGS, kept)
            for path in (kept, *kept.rglob("*")):
                path.chmod(path.stat().st_mode & 0o700)  # Ray lets everybody into its folders
        self.own.delete()
        self._show(*filter(None, [left]), *self.job.progress())

    def _end(self, code: int, problem: Problem | None, log: str) -> End:
        if self.signals and code:  # a signal may have come during the clean-up
            if problem and code != -signal.SIGTERM:  # a SIGTERM to all processes at once is not a failure
                self._show(f"{'failed':<12} {problem.what}")
            return End(128 + self.signals[0])
        file = self.job.log_dir / log
        if code and (log != driver_error.LOG or code < 0 or not problem):
            lines = (f"  {redact(line)}" for line in driver_error.tail(file, _TAIL_LINES))
            self._show(f"last lines of {file}:", *lines)
        unknown = Problem(f"the driver ended with exit code {code}", f"see {file}")
        return End(128 - code if code < 0 else code, (problem or unknown) if code else None)

    def _show(self, *lines: str) -> None:
        """Print lines. If nothing reads them any more (`| head`), end the run as a shell would."""
        if not lines:
            return
        try:
            print(*lines, sep="\n", flush=True)
        except OSError as error:  # a terminal that is gone ends the run only by SIGHUP, which may be ignored
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                self.signals.append(signal.SIGPIPE)
