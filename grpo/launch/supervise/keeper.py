"""The keeper: the process that starts services and the driver, and ends everything, whatever happens to others.

The services are Ray and, in a small run without a judge's key, the server that stands in for Gemini.

It is a subreaper in its own session, so neither a Ctrl-C nor a closed terminal reaches it. The launcher holds the other
end of its standard input. A closed input means stop; a killed launcher closes it too.

Input: a :class:`Job`, and later perhaps a line to ask for an examination of the processes.
Output: one line of JSON for each event.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from grpo.launch.supervise import base_dir, examination, last_words, processes, ray_head
from grpo.launch.supervise.ray_head import RayHead
from grpo.launch.supervise.witness import Death, Witness, describe_end
from grpo.stack import rendezvous
from grpo.stack.checkout import CHECKOUT
from grpo.stack.machine import SHM
from reward.settings import STAND_IN_VARIABLE

RAY_START_LIMIT = 180.0
STAND_IN_START_LIMIT = 60.0


@dataclass
class Job:
    """The run to supervise.

    Attributes:
        driver: the command, which runs in the checkout.
        log_dir: where ``driver.log``, ``ray-start.log`` and Ray's own logs go.
        base_dir: the run's folder for sockets and temporary files; deleted at the end.
        grace: seconds between SIGTERM and SIGKILL.
        environment: variables on top of the keeper's own.
        stand_in_models: ids for a local stand-in for Gemini; [] starts none.
        ray: the cluster to start; None starts none (``RAY_ADDRESS`` in the environment names one to join).
        run_id: written into the environment of every started process (``GRPO_RUN_ID``).
        foreign_memory: files under /dev/shm from before the run; never deleted.
    """

    driver: list[str]
    log_dir: str
    base_dir: str
    grace: float
    environment: dict[str, str] = field(default_factory=dict)
    stand_in_models: list[str] = field(default_factory=list)
    ray: RayHead | None = None
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    foreign_memory: list[str] = field(default_factory=lambda: list(map(str, SHM.glob("*"))))

    def dump(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, line: str) -> "Job":
        """Read what :meth:`dump` wrote."""
        values = json.loads(line)
        values["ray"] = RayHead(**values["ray"]) if values["ray"] else None
        return cls(**values)


class Stopped(Exception):
    """The launcher ended or asked to stop, or this process got a signal."""


class ServiceFailed(Exception):
    """Ray or the judge's stand-in did not start, or ended before the driver; the message is for the user.

    Args:
        log: the file in the log folder with the details.
        is_killed: whether a signal ended it, so that no other process is the cause.
    """

    def __init__(self, message: str, log: str, is_killed: bool = False) -> None:
        super().__init__(message)
        self.log, self.is_killed = log, is_killed


def clean_up(job: Job, root: int, shared_memory: set[Path]) -> processes.Ended:
    """End every process of the run below `root`, keep Ray's logs, delete shared memory and `base_dir`."""
    ended = processes.end_all(job.run_id, root, job.grace)
    foreign = {Path(name) for name in job.foreign_memory}
    processes.remove_shared_memory((shared_memory | ended.shared_memory) - foreign)
    if job.ray:
        _keep_ray_logs(Path(job.base_dir), Path(job.log_dir) / "ray")
    shutil.rmtree(job.base_dir, ignore_errors=True)
    return ended


def _keep_ray_logs(base_dir: Path, kept: Path) -> None:
    """Replace the link to Ray's log folder with a copy of it."""
    make_way(kept)
    logs = base_dir / "ray" / "session_latest" / "logs"
    if not logs.is_dir():
        return
    try:
        shutil.copytree(logs, kept)
        for path in (kept, *kept.rglob("*")):  # Ray makes its folders writable for everyone
            path.chmod(path.stat().st_mode & 0o700)
    except OSError as error:
        print(f"Ray's logs could not be copied to {kept}: {error}", file=sys.stderr)


def make_way(kept: Path) -> None:
    """Remove a link to Ray's logs; keep the logs of an earlier part of the run under another name."""
    if kept.is_symlink():
        kept.unlink()
    elif kept.exists():
        number = sum(1 for _ in kept.parent.glob(f"{kept.name}.*"))
        kept.rename(kept.with_name(f"{kept.name}.{number + 1}"))


class Keeper:
    """Runs one :class:`Job`."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.signalled: int | None = None
        self.exits: dict[int, int] = {}
        self.shared_memory = processes.SharedMemoryWatch(job.run_id)
        # Services that must live as long as the driver: name and log by pid.
        self.services: dict[int, tuple[str, str]] = {}
        self.witness = Witness()
        self.stopped: set[int] = set()
        self.driver = 0  # its pid
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._note_signal)

    def _note_signal(self, signum: int, frame: FrameType | None) -> None:
        self.signalled = signum

    def run(self) -> None:
        """Start the services and the driver, wait, clean up, report."""
        processes.become_subreaper()
        try:
            if self.job.stand_in_models:
                self._start_stand_in(self.job.stand_in_models)
            if self.job.ray:
                self._start_ray(self.job.ray)
            report(event="driver ended", code=self._run_driver())
        except Stopped as stop:
            report(event="stopping", reason=str(stop))
        except ServiceFailed as failure:
            report(event="service failed", message=str(failure), log=failure.log, killed=failure.is_killed)
        finally:
            ended = clean_up(self.job, os.getpid(), self.shared_memory.files)
            report(event="clean", left=sorted(ended.left))

    def _start_stand_in(self, models: list[str]) -> None:
        """Start the local server that stands in for Gemini; every later process gets its address."""
        address = Path(self.job.base_dir) / "stand-in-address"
        command = [sys.executable, "-m", "reward.stand_in", "--address-file", str(address), "--models", *models]
        self.services[self._spawn(command, "stand-in.log")] = ("the judge's stand-in", "stand-in.log")
        started = time.monotonic()
        while not address.is_file():
            self._wait(0.1)
            if time.monotonic() - started > STAND_IN_START_LIMIT:
                raise ServiceFailed("the judge's stand-in did not start in time", "stand-in.log")
        self.job.environment[STAND_IN_VARIABLE] = address.read_text(encoding="utf-8")
        report(event="stand-in started", address=self.job.environment[STAND_IN_VARIABLE])

    def _start_ray(self, head: RayHead) -> None:
        report(event="starting ray", gpus=head.num_gpus, cpus=head.num_cpus)
        started = time.monotonic()
        base = Path(self.job.base_dir)
        self.job.environment |= ray_head.variables() | rendezvous.variables(base / "rendezvous")
        self.services[self._spawn(ray_head.start_command(head, base), "ray-start.log")] = ("Ray", "ray-start.log")
        address = ray_head.address_file(base)
        while not (address.is_file() and address.read_text().strip()):
            self._wait(0.1)
            if time.monotonic() - started > RAY_START_LIMIT:
                raise ServiceFailed(f"Ray did not start within {RAY_START_LIMIT:.0f} s", "ray-start.log")
        self.job.environment["RAY_ADDRESS"] = address.read_text().strip()
        kept = Path(self.job.log_dir) / "ray"
        make_way(kept)
        kept.symlink_to(base / "ray" / "session_latest" / "logs")
        seconds = time.monotonic() - started
        report(event="ray started", address=self.job.environment["RAY_ADDRESS"], seconds=seconds)

    def _run_driver(self) -> int:
        file = last_words.locate_file(Path(self.job.log_dir))
        self.job.environment[last_words.FILE_VARIABLE] = str(file.absolute())
        self.driver = self._spawn(self.job.driver, "driver.log")
        report(event="driver started")
        while self.driver not in self.exits:
            self._wait(0.2)
        if self.exits[self.driver]:
            self._report_deaths(self.witness.last_deaths())
        return self.exits[self.driver]

    def _spawn(self, command: list[str], log_name: str) -> int:
        """Start a command in its own session, marked with the run's id; return its pid."""
        temporary = Path(self.job.base_dir) / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            **self.job.environment,
            processes.RUN_ID_VARIABLE: self.job.run_id,
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
        }
        log = os.open(Path(self.job.log_dir) / log_name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        child = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        os.close(log)
        # _wait collects every child, so Popen must not look for this one.
        child.returncode = 0
        return child.pid

    def _wait(self, seconds: float) -> None:
        """Wait for input, a signal or `seconds`; collect ended children.

        Raises:
            Stopped: if the run must end now.
            ServiceFailed: if a service has ended.
        """
        if self.signalled:
            raise Stopped(f"the keeper got {signal.Signals(self.signalled).name}")
        ready, _, _ = select.select([sys.stdin.fileno(), self.witness], [], [], seconds)
        if sys.stdin.fileno() in ready:
            # A line asks for an examination; the end of the input means stop.
            if not os.read(sys.stdin.fileno(), 4096):
                raise Stopped("the launcher asked to stop or ended")
            self._examine()
        if self.shared_memory.look():
            ours = self.shared_memory.files - {Path(name) for name in self.job.foreign_memory}
            base_dir.note_shared_memory(Path(self.job.base_dir), ours)
        self.exits.update(processes.reap())
        self._report_deaths(self.witness.deaths())
        if self.witness.is_due():
            self._watch_new()
        for pid, (name, log) in self.services.items():
            if pid in self.exits:
                raise ServiceFailed(f"{name} {describe_end(self.exits[pid])} (pid {pid})", log, self.exits[pid] < 0)

    def _report_deaths(self, deaths: Iterable[Death]) -> None:
        for death in deaths:
            report(event="died", **asdict(death))

    def _watch_new(self) -> None:
        """Watch the run's new processes, and report those that somebody has stopped."""
        self.witness.watch_new(processes.find_run_processes(self.job.run_id, os.getpid()))
        watched = self.witness.list_watched()
        stopped = {pid for pid in watched if examination.is_stopped(pid)}
        for pid in stopped - self.stopped:
            report(event="stopped", role=watched[pid], pid=pid)
        self.stopped = stopped

    def _examine(self) -> None:
        """Write down what every important process is doing, and tell the launcher where."""
        file = Path(self.job.log_dir) / f"hang-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        try:
            environment = {**os.environ, **self.job.environment, processes.RUN_ID_VARIABLE: self.job.run_id}
            examination.write(file, {self.driver: "the driver", **self.witness.list_watched()}, environment)
        except OSError as error:  # a full disk must not keep a hanging run
            print(f"{file} was not written: {error}", file=sys.stderr)
        report(event="examined", file=str(file))


def report(**event: Any) -> None:
    """Send the launcher an event. The cleanup continues if the launcher is gone."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        # Otherwise Python would flush again at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Read the job from standard input and run it."""
    Keeper(Job.load(sys.stdin.readline())).run()


if __name__ == "__main__":
    main()
