"""The faults of a soak: what each one does to a run, and how a person would end it."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from grpo.launch.supervise.witness import find_role
from tests.soak.disk import SmallDisk
from tests.soak.tiny_run import TinyRun

# A part of the command line of those whose end the keeper does not watch
PARTS = {
    "the driver": "openrlhf.cli.train_ppo_ray",
    "the keeper": "grpo.launch.supervise.keeper",
    "Ray's head": "grpo.launch.supervise.ray_head",
}
ENGINES = ("an engine", "the core of an engine")
STOPPED = (*ENGINES, "an actor rank", "the driver")
KILLED = (*STOPPED, "Ray's raylet", "Ray's GCS server", "Ray's head", "the keeper", "the launcher")


@dataclass(frozen=True)
class Fault:
    """A fault: its name in the table, and what injects it; False if the run has nothing yet that it could hit."""

    name: str
    inject: Callable[[TinyRun], bool]


def list_faults(disk: SmallDisk | None) -> list[Fault]:
    """Return every fault; without a disk, none fills it."""
    faults = [Fault(f"SIGKILL: {role}", _signal(role, signal.SIGKILL)) for role in KILLED]
    faults += [Fault(f"SIGSTOP: {role}", _signal(role, signal.SIGSTOP)) for role in STOPPED]
    faults += [Fault("SIGTERM", lambda run: run.signal(signal.SIGTERM)), Fault("Ctrl-C twice", _interrupt_twice)]
    faults += [Fault("everything is killed, and a line of metrics is cut", _cut_power)]
    if disk:
        faults.append(Fault("the disk of the checkpoints is full", lambda _: disk.fill()))
    return faults


def find(role: str, processes: Sequence[psutil.Process]) -> psutil.Process | None:
    """Return the process with a role; None if there is none."""
    for process in processes:
        try:
            if find_role(process) == role or (role in PARTS and PARTS[role] in process.cmdline()):
                return process
        except psutil.Error:
            continue
    return None


def cut_last_line(file: Path) -> bool:
    """Cut the last line of a file in its middle, as a power cut may; False if it has none."""
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    if not lines:
        return False
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    return True


def _signal(role: str, signum: signal.Signals) -> Callable[[TinyRun], bool]:
    def inject(run: TinyRun) -> bool:
        if role == "the launcher":
            return run.signal(signum)
        victim = find(role, run.list_processes())
        if victim is None:
            return False
        victim.send_signal(signum)
        return True

    return inject


def _interrupt_twice(run: TinyRun) -> bool:
    return run.signal(signal.SIGINT) and (run.signal(signal.SIGINT) or True)


def _cut_power(run: TinyRun) -> bool:
    if not run.files.metrics.is_file():
        return False
    run.kill_everything()
    return cut_last_line(run.files.metrics)
