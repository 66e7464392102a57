"""Starts Ray, the judge's stand-in, and the driver; follows the driver to its end; ends everything that it started."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from grpo.launch import signals
from grpo.launch.hang import HangWatch
from grpo.launch.supervise import cause, guard, last_words, processes, ray_head
from grpo.launch.supervise.owned import Owned
from grpo.launch.supervise.ray_head import RayHead
from grpo.run.save_request import SaveRequest
from grpo.stack import machine, rendezvous
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem
from grpo.stack.secrets import redact
from reward.settings import STAND_IN_VARIABLE

QUIET_SECONDS = 60.0
SERVICE_SECONDS = 180.0  # that a service may take to start
TAIL_LINES = 30
FAILED = 1
STOPPED = 3  # by the parity gate
_TICK = 0.2


@dataclass(frozen=True)
class Saving:
    """How to ask the trainer for a checkpoint before the run ends, and how many seconds it gets; 0 asks for none."""

    request: SaveRequest
    seconds: float


@dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        code: the driver's exit code; 128 + n if signal n ended the driver or the launcher; 1 if a service failed.
        cause: why it failed; None if it did not, or if a signal to the launcher ended it.
    """

    code: int
    cause: Problem | None = None


@dataclass(frozen=True)
class Job:
    """A driver and what it needs.

    Attributes:
        driver: the command; runs in the checkout, with ``RAY_ADDRESS`` set if `ray` is given.
        log_dir: an existing folder for the output of the driver and of Ray.
        ray: the resources of the run's own cluster; None starts none.
        environment: variables on top of this process's own.
        progress: returns the lines to show since its last call.
        grace: seconds between SIGTERM and SIGKILL.
        stand_in_models: ids for a local stand-in for Gemini; [] starts none.
        folders: more folders that the run writes to, by what the user calls them.
        watch: tells what the run is doing, and whether it hangs; None: nobody looks.
        saving: a Ctrl-C or SIGTERM to this process lets the run save first; None ends it at once.
    """

    driver: Sequence[str]
    log_dir: Path
    ray: RayHead | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[], list[str]] = list
    grace: float = 10.0
    stand_in_models: Sequence[str] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    watch: HangWatch | None = None
    saving: Saving | None = None


def supervise(job: Job) -> End:
    """Run a driver to its end, and leave no process of it behind. Needs a guard."""
    supervisor = _Supervisor(job)
    before = signals.handle(supervisor.note_signal)
    try:
        return supervisor.run()
    finally:
        signals.restore(before)


class _Stop(Exception):
    """A signal ends the run."""


class _Failed(Exception):
    """The run cannot go on; `log` has the details."""

    def __init__(self, what: str, log: str) -> None:
        super().__init__(what)
        self.what, self.log = what, log


class _Supervisor:
    def __init__(self, job: Job) -> None:
        self.job, self.owned = job, Owned()
        words = last_words.locate_file(job.log_dir)
        words.unlink(missing_ok=True)  # of an earlier part of the run
        self.environment = {**job.environment, last_words.FILE_VARIABLE: str(words.absolute())}
        self.folders = {"the logs": job.log_dir, "temporary files": self.owned.folder, "shared memory": machine.SHM}
        self.folders |= job.folders
        self.services: dict[int, tuple[str, str]] = {}  # name and log by pid; they must live as long as the driver
        self.saving = job.saving if job.saving and job.saving.seconds else None
        self.told: int | None = None  # a signal that lets the run save first
        self.save_until: float | None = None
        self.signalled: int | None = None  # one that ends it at once
        self.started = self.last_shown = time.monotonic()
        self.last_waited_for = ""

    def note_signal(self, number: int, frame: FrameType | None) -> None:
        """Take a signal: the first may let the run save."""
        if number in (signal.SIGINT, signal.SIGTERM) and self.saving and not self.told and not guard.is_lost():
            self.told = number
        else:
            self.signalled = self.signalled or number

    def run(self) -> End:
        """Start everything, follow it until the end, clean up, and return how the run ended."""
        killed = cause.count_out_of_memory_kills()
        code, problem, log = FAILED, None, last_words.LOG
        try:
            if self.job.stand_in_models:
                self._start_stand_in(self.job.stand_in_models)
            if self.job.ray:
                self._start_ray(self.job.ray)
            code = self._follow_driver()
            problem = self._explain(code, killed) if code and not self.signalled else None
        except _Failed as failed:
            problem, log = cause.find_full_disk(self.folders) or Problem(failed.what, ""), failed.log
        except _Stop:
            pass
        finally:
            self._clean_up()
        return self._end(code, problem, log)

    def _start_stand_in(self, models: Sequence[str]) -> None:
        """Start the local server that stands in for Gemini; every later process gets its address."""
        file = self.owned.folder / "stand-in-address"
        command = [sys.executable, "-m", "reward.stand_in", "--address-file", str(file), "--models", *models]
        self.environment[STAND_IN_VARIABLE] = address = self._start(
            "the judge's stand-in", command, "stand-in.log", file
        )
        self._show(f"the judge's stand-in answers at {address}")

    def _start_ray(self, head: RayHead) -> None:
        devices = f"{format_count(head.num_gpus, 'GPU')}, {format_count(head.num_cpus, 'CPU')}"
        self._show(f"starting Ray ({machine.stand_ins(head.num_gpus) if is_cpu_stack() else devices})")
        started, folder = time.monotonic(), self.owned.folder
        self.environment |= ray_head.variables() | rendezvous.variables(folder / "rendezvous")
        command, file = ray_head.start_command(head, folder), ray_head.address_file(folder)
        ray_head.link_logs(folder, self.job.log_dir / "ray")
        self.environment["RAY_ADDRESS"] = address = self._start("Ray", command, "ray-start.log", file)
        self._show(f"Ray is up at {address} after {time.monotonic() - started:.0f} s")

    def _start(self, name: str, command: Sequence[str], log: str, file: Path) -> str:
        """Start a service, and return the address that it writes into a file."""
        self.services[self.owned.spawn(command, self.job.log_dir / log, self.environment)] = (name, log)
        started = time.monotonic()
        while not (file.is_file() and (address := file.read_text(encoding="utf-8").strip())):
            self._tick()
            if time.monotonic() - started > SERVICE_SECONDS:
                raise _Failed(f"{name} did not start within {SERVICE_SECONDS:.0f} s", log)
        return address

    def _follow_driver(self) -> int:
        """Run the driver; return its exit code."""
        driver = self.owned.spawn(self.job.driver, self.job.log_dir / last_words.LOG, self.environment)
        self._show(f"starting engines and actor; log: {self.job.log_dir / last_words.LOG}")
        while driver not in self.owned.exits:
            self._tick()
            self._show_sign_of_life()
            if self.job.watch and (hang := self.job.watch.hang()):
                raise _Failed(hang, last_words.LOG)
        return self.owned.exits[driver]

    def _tick(self) -> None:
        """Wait a moment, collect ended processes, and show progress.

        Raises:
            _Stop: after a signal that ends the run at once.
            _Failed: if a service has ended.
        """
        if self.signalled or (self.told and self._has_saved()):
            raise _Stop
        time.sleep(_TICK)
        self.owned.look()
        self._show(*self.job.progress())
        self._look_at_services()

    def _look_at_services(self) -> None:
        for pid, (name, log) in self.services.items():
            if pid in self.owned.exits:
                raise _Failed(f"{name} {cause.describe_end(self.owned.exits[pid])} (pid {pid})", log)

    def _has_saved(self) -> bool:
        """Ask for a checkpoint, once; return whether it was saved, or timed out."""
        if not self.saving or not self.job.watch or not self.job.watch.has_new_steps():
            return True
        request, seconds = self.saving.request, self.saving.seconds
        if self.save_until is None:
            try:
                request.ask()
            except OSError as error:
                self._show(f"not saved: {error}")
                return True
            self.save_until = time.monotonic() + seconds
            at_once = "; press Ctrl-C again to stop immediately" if self.told == signal.SIGINT else ""
            name = signals.get_name(self.told or 0)
            self._show(f"{name}: saving the last completed step, for at most {seconds:.0f} s{at_once}")
        if request.is_open() and time.monotonic() < self.save_until:
            return False
        why = "timed out" if request.is_open() else request.failure()
        self._show(f"not saved: {why}" if why else "saved")
        return True

    def _explain(self, code: int, killed_before: int) -> Problem | None:
        """Return why the driver failed, before the clean-up frees disks; None if only its log can tell."""
        is_silent = last_words.read(self.job.log_dir) is None and code in (FAILED, -signal.SIGABRT)
        until = time.monotonic() + ray_head.NOTICE_SECONDS
        while self.services and is_silent and time.monotonic() < until:  # Ray ends soon, if it is the cause
            self.owned.look()
            self._look_at_services()
            time.sleep(_TICK)
        killed = cause.count_out_of_memory_kills() - killed_before
        joined = "" if self.services else os.environ.get("RAY_ADDRESS", "")
        silent = joined if joined and ray_head.explain_silence(joined) else ""
        return cause.find(self.job.log_dir, self.folders, code, killed, silent)

    def _clean_up(self) -> None:
        if number := self.signalled or self.told:
            self._show(f"{signals.get_name(number)}: ending the run (at most {self.job.grace:.0f} s)")
        left = self.owned.end(self.job.grace)
        if self.job.ray:
            ray_head.keep_logs(self.owned.folder, self.job.log_dir / "ray")
        self.owned.delete()
        if left:
            self._show(processes.describe_left(left))
        self._show(*self.job.progress())

    def _end(self, code: int, problem: Problem | None, log: str) -> End:
        number = self.signalled or self.told  # a signal may have come during the clean-up
        if code == 0:
            return End(0)
        if number:
            if problem and code != -signal.SIGTERM:  # a SIGTERM to all processes at once is no failure
                self._show(f"{'failed':<12} {problem.what}")
            return End(128 + number)
        if log != last_words.LOG or code < 0 or not problem:
            last = (f"  {redact(line)}" for line in last_words.tail(self.job.log_dir / log, TAIL_LINES))
            self._show(f"last lines of {self.job.log_dir / log}:", *last)
        unknown = Problem(f"the driver ended with exit code {code}", f"see {self.job.log_dir / log}")
        return End(128 - code if code < 0 else code, problem or unknown)

    def _show(self, *lines: str) -> None:
        """Print lines. If nobody reads them any more (`| head`), end the run as a shell would."""
        if not lines:
            return
        self.last_shown = time.monotonic()
        try:
            print(*lines, sep="\n", flush=True)
        except OSError as error:  # a terminal that is gone ends the run only by SIGHUP, which may be ignored
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                self.signalled = self.signalled or signal.SIGPIPE

    def _show_sign_of_life(self) -> None:
        """After a quiet minute, say what the run waits for, once for each such thing."""
        if not self.job.watch or time.monotonic() - self.last_shown < QUIET_SECONDS:
            return
        waits_for = self.job.watch.describe_wait()
        if waits_for != self.last_waited_for:
            self.last_waited_for = waits_for
            self._show(f"  {(time.monotonic() - self.started) / 60:.0f} min: {waits_for}")
