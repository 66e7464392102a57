"""Runs a driver under a keeper, shows events, and returns the driver's exit code.

Two processes watch over a run. This one talks to the user; the keeper (:mod:`grpo.launch.supervise.keeper`) owns the
processes. Either may be killed at any moment: the other one then ends the run.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from grpo.launch import signals
from grpo.launch.supervise import base_dir, cause, keeper, last_words, processes, ray_head
from grpo.launch.supervise.examination import is_stopped
from grpo.launch.supervise.keeper import Job
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.watch import End, Saving, Watch
from grpo.launch.supervise.witness import Death
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT, is_cpu_stack
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem
from grpo.stack.secrets import redact

GRACE_SECONDS = 10.0
QUIET_SECONDS = 60.0
EXAMINATION_SECONDS = 400.0  # longer than the limits in examination.py together
CLEAN_UP_SECONDS = 60.0  # that a keeper may take beside the grace, before it is killed
TAIL_LINES = 30
FAILED = 1
STOPPED = 3  # by the parity gate


def supervise(
    driver: list[str],
    *,
    ray: RayHead | None,
    log_dir: Path,
    environment: dict[str, str] | None = None,
    progress: Callable[[], list[str]] = list,
    grace: float = GRACE_SECONDS,
    stand_in_models: Sequence[str] = (),
    inherited: Sequence[int] = (),
    folders: Mapping[str, Path] | None = None,
    watch: Watch | None = None,
    saving: Saving | None = None,
) -> End:
    """Run `driver`, with its own Ray cluster if `ray` is given, and leave no process of it behind.

    Args:
        driver: the command; runs in the checkout, with ``RAY_ADDRESS`` set if `ray` is given.
        ray: the cluster's resources; None starts no cluster.
        log_dir: an existing folder for the output of the driver and of Ray.
        environment: variables on top of this process's own.
        progress: returns the lines to show since its last call; called every half second.
        grace: seconds between SIGTERM and SIGKILL.
        stand_in_models: ids for a local stand-in for Gemini; [] starts none.
        inherited: file descriptors that the keeper also holds until the run's last process is gone.
        folders: more folders that the run writes to, by what the user calls them.
        watch: tells what the run is doing, and whether it hangs; None: nobody looks.
        saving: a Ctrl-C or SIGTERM to this process, or a rule that ends the run, lets it save first; None ends it at
            once.
    """
    last_words.locate_file(log_dir).unlink(missing_ok=True)  # of an earlier part of the run
    base, held = base_dir.make()
    written = {"the logs": log_dir, "temporary files": base, "shared memory": machine.SHM, **(folders or {})}
    job = Job(driver, str(log_dir.resolve()), str(base), grace, environment or {}, list(stand_in_models), ray)
    if saving and not saving.seconds:
        saving = None
    try:
        return _Supervisor(job, log_dir, progress, [*inherited, held], written, watch or Watch(), saving).run()
    finally:
        os.close(held)


@dataclass
class _Supervisor:
    job: Job
    log_dir: Path
    progress: Callable[[], list[str]]
    inherited: Sequence[int]
    folders: Mapping[str, Path]
    watch: Watch
    saving: Saving | None
    out_of_memory: int = field(default_factory=cause.count_out_of_memory_kills)
    hang: Problem | None = None
    examined_until: float = 0.0
    stopped: dict[int, str] = field(default_factory=dict)  # roles by pid
    save_until: float | None = None
    told: int | None = None  # a signal that lets the run save first
    signalled: int | None = None
    code: int | None = None
    clean: bool = False
    deaths: list[Death] = field(default_factory=list)
    cause: Problem | None = None
    last_log: str = ""  # of the service that failed
    started: float = field(default_factory=time.monotonic)
    last_shown: float = field(default_factory=time.monotonic)
    last_waited_for: str = ""

    def run(self) -> End:
        """Start the keeper, follow it until the end, return how the run ended."""
        processes.become_subreaper()
        handlers = signals.handle(self._note_signal)
        child = subprocess.Popen(
            [sys.executable, "-m", "grpo.launch.supervise.keeper"],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select sees no line that Python has buffered
            start_new_session=True,
            pass_fds=self.inherited,
        )
        try:
            self._follow(child)
        finally:
            self._end(child)
            signals.restore(handlers)
        return self._determine_end()

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum in (signal.SIGINT, signal.SIGTERM) and self.saving and not self.told:
            self.told = signum
        else:  # also a second one
            self.signalled = self.signalled or signum

    def _follow(self, child: subprocess.Popen[bytes]) -> None:
        """Show events and progress until the keeper closes its output or a signal arrives."""
        assert child.stdin and child.stdout
        try:
            child.stdin.write(self.job.dump().encode() + b"\n")
        except BrokenPipeError:
            return
        while not self.signalled:
            if select.select([child.stdout], [], [], 0.5)[0]:
                if not (line := child.stdout.readline()):
                    return
                self._on_event(json.loads(line))
            self._show(*self.progress())
            self._show_sign_of_life()
            self._look_for_hang(child.stdin)
            if self.code is not None:
                return
            if self.told and self._has_saved():
                return

    def _look_for_hang(self, keeper_input: IO[bytes]) -> None:
        """Ask the keeper to examine a run that hangs, once; its answer, or none in time, ends the run."""
        if self.hang and time.monotonic() > self.examined_until:
            self.code = FAILED
            self.cause = Problem(f"{self.hang.what}; the keeper does not answer", "")
        if self.hang or not (hang := self.watch.hang()):
            return
        self.hang, self.examined_until = hang, time.monotonic() + EXAMINATION_SECONDS
        self._show(f"{hang.what}; examining every process")
        with contextlib.suppress(BrokenPipeError):  # the keeper is dead, and its output ends
            keeper_input.write(b"examine\n")

    def _has_saved(self) -> bool:
        """Ask for a checkpoint, once; return whether it was saved, or timed out."""
        if not self.saving:
            return True
        if self.save_until is None:
            if not self.watch.has_new_steps():
                return True
            try:
                self.saving.request.ask()
            except OSError as error:
                self._show(f"not saved: {error}")
                return True
            self.save_until = time.monotonic() + self.saving.seconds
            why = signals.get_name(self.told) if self.told else ""
            at_once = "; press Ctrl-C again to stop immediately" if self.told == signal.SIGINT else ""
            self._show(f"{why}: saving the last completed step, for at most {self.saving.seconds:.0f} s{at_once}")
        if self.saving.request.is_open() and time.monotonic() < self.save_until:
            return False
        why = "timed out" if self.saving.request.is_open() else self.saving.request.failure()
        self._show(f"not saved: {why}" if why else "saved")
        return True

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Close the keeper's input, which ends the run. If the keeper is dead, do its work."""
        assert child.stdin and child.stdout
        if self.code != 0:
            self.signalled = self.signalled or self.told
        if self.signalled:
            self._show(f"{signals.get_name(self.signalled)}: ending the run (at most {self.job.grace:.0f} s)")
        child.stdin.close()
        is_examining = self.hang is not None and self.code is None
        if not is_examining:
            child.send_signal(signal.SIGCONT)  # somebody may have stopped it
        late = threading.Timer(0.0 if is_examining else self.job.grace + CLEAN_UP_SECONDS, child.kill)
        late.start()
        for line in child.stdout:
            self._on_event(json.loads(line))
        child.wait()
        late.cancel()
        if not self.clean:
            self._show("the keeper was killed: ending the run")
            noted = base_dir.shared_memory(Path(self.job.base_dir))
            self._show_left(keeper.clean_up(self.job, os.getpid(), noted).left)
        self._show(*self.progress())

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "starting ray":
            devices = f"{format_count(event['gpus'], 'GPU')}, {format_count(event['cpus'], 'CPU')}"
            self._show(f"starting Ray ({machine.stand_ins(event['gpus']) if is_cpu_stack() else devices})")
        elif kind == "ray started":
            self._show(f"Ray is up at {event['address']} after {event['seconds']:.0f} s")
        elif kind == "driver started":
            self._show(f"starting engines and actor; log: {self.log_dir / 'driver.log'}")
        elif kind == "died":
            self.deaths.append(Death(event["role"], event["pid"], event["code"]))
        elif kind == "stopped":
            self.stopped[event["pid"]] = event["role"]
            told = f"{event['role']} is suspended (SIGSTOP, pid {event['pid']}), and the run waits for it"
            self._show(f"{told}; to resume it: kill -CONT {event['pid']}")
        elif kind == "examined":
            assert self.hang
            stopped = [
                f"{role} is suspended (SIGSTOP, pid {pid})" for pid, role in self.stopped.items() if is_stopped(pid)
            ]
            what = "; ".join([self.hang.what, *stopped])
            self.code, self.cause = FAILED, Problem(what, f"stacks and states of all processes: {event['file']}")
        elif kind == "driver ended":
            self.code = event["code"]
            self._find_cause(event["code"])
        elif kind == "stand-in started":
            self._show(f"the judge's stand-in answers at {event['address']}")
        elif kind == "service failed":
            self.code, self.last_log = FAILED, event["log"]
            self._find_cause(None)
            if event["killed"] or not self.cause:
                self.cause = Problem(event["message"], "")
        elif kind == "clean":
            self.clean = True
            self._show_left(event["left"])

    def _find_cause(self, code: int | None) -> None:
        """Look for the cause at once: the clean-up frees disks and ends processes."""
        if code == 0 or self.signalled:
            return
        killed, log = cause.count_out_of_memory_kills() - self.out_of_memory, self.log_dir / "driver.log"
        words = last_words.read(self.log_dir) if code is not None else None
        joined = "" if self.job.ray else os.environ.get("RAY_ADDRESS", "")
        silent = joined if joined and ray_head.explain_silence(joined) else ""
        has_graphs = not is_cpu_stack() and "--enforce_eager" not in self.job.driver
        self.cause = cause.find(cause.Evidence(log, self.folders, code, self.deaths, words, killed, silent, has_graphs))

    def _determine_end(self) -> End:
        if self.code == 0:
            return End(0)
        self.signalled = self.signalled or self.told  # a signal may have come during the clean-up
        # A SIGTERM to all processes at once is no failure.
        if self.signalled and self.cause and "killed by SIGTERM" not in self.cause.what:
            self._show(f"{'failed':<12} {self.cause.what}")
        if self.signalled:
            return End(128 + self.signalled)
        if self.code is None:
            return End(FAILED, Problem("the keeper was killed", ""))
        log = self.log_dir / (self.last_log or "driver.log")
        if self.last_log or self.code < 0 or not self.cause:
            last = (f"  {redact(line)}" for line in last_words.tail(log, TAIL_LINES))
            self._show(f"last lines of {log}:", *last)
        unknown = Problem(f"the driver ended with exit code {self.code}", f"see {log}")
        return End(128 - self.code if self.code < 0 else self.code, self.cause or unknown)

    def _show(self, *lines: str) -> None:
        """Print lines. If nobody reads them any more (`| head`), end the run as a shell would."""
        if not lines:
            return
        self.last_shown = time.monotonic()
        try:
            print(*lines, sep="\n", flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.signalled = self.signalled or signal.SIGPIPE

    def _show_left(self, left: Collection[int]) -> None:
        if left:
            pids = ",".join(map(str, sorted(left)))
            self._show(f"these processes could not be ended; inspect them with: ps -fp {pids}")

    def _show_sign_of_life(self) -> None:
        """After a quiet minute, say what the run waits for, once for each such thing."""
        if time.monotonic() - self.last_shown < QUIET_SECONDS:
            return
        waits_for = self.watch.describe_wait()
        if waits_for != self.last_waited_for:
            self.last_waited_for = waits_for
            self._show(f"  {(time.monotonic() - self.started) / 60:.0f} min: {waits_for}")
