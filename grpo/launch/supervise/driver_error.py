"""Why the driver failed: what has died, or the first exception, and the remedy of frequent ones.

Ray brings the exceptions of all processes to the driver. It keeps the one that ends it; the launcher reads it.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo.stack import cluster, machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.json_files import open_file, read_json, replace
from grpo.stack.problem import Problem, UserError
from grpo.stack.secrets import redact

FILE_VARIABLE = "GRPO_FAILURE_FILE"
LOG, KEPT = "driver.log", "failure.json"  # in the folder of logs
_FULL, _LONGEST = 16 * 2**20, 600  # bytes of a disk on which nothing of a run is written; characters of a message
_LOST = "see whether it runs and has a network; start Ray there, or on another one, until enough GPUs are free"
_FREE_DISK = "free disk space, or set --ckpt_path or --metrics_dir to another disk"
_FREE_MEMORY = "end other programs, or see the host memory in --plan"
_REMEDIES = {
    r"No space left on device|Disk quota exceeded": _FREE_DISK,
    r"Too many open files": "raise the limit of open files (ulimit -Hn)",
    r"CUDA (error: )?out of memory": "lower --micro_train_batch_size, --micro_rollout_batch_size, or lengths",
    r"node running low on memory": f"the machine lacks memory, so Ray killed a worker: {_FREE_MEMORY}",
}
_LAST_WORDS = "read its last lines in worker-*-PID.err: in the run's logs/ray-*, or in Ray's logs on its node"
_NO_GRAPHS = "if this says nothing of another cause, start engines without CUDA graphs: --enforce_eager"
_ROLES = {"LLMRayActor": "an engine", "RolloutRayActor": "an engine", "PolicyWorker": "an actor rank"}
_ROLES |= {"JudgeActor": "the judge"}
# Exceptions that only say that another process has died
_OF_DEATHS = re.compile(r"(Died|Unavailable|Dead|Lost|Crashed|Actor)Error$")
_NO_ENGINE = "Engine core initialization failed"  # vLLM says so whatever kept an engine from starting
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MESSAGE = re.compile(r"\b[A-Za-z_][\w.]*(?:Error|Exception): .+")
_OF_ENGINE = re.compile(r"\((?:EngineCore|Worker)\S* pid=\d+\)\S* ERROR .*?\] ([A-Za-z_][\w.]*(?:Error|Exception): .+)")


@dataclass(frozen=True)
class DriverError:
    """What ended the driver: the exception's type, what it says or what has died, and the remedy ("" if none)."""

    kind: str
    what: str
    remedy: str = ""


def install() -> None:
    """Keep the exception that ends this process, if it is the driver of a run. Call once."""
    file, before = os.environ.get(FILE_VARIABLE), sys.excepthook
    if not file:
        return

    def keep(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: the launcher sees it by itself
            replace(Path(file), json.dumps(asdict(explain(error, Path(file).with_name(LOG)))) + "\n")
        before(kind, error, trace)

    sys.excepthook = keep


def read(log_dir: Path) -> DriverError | None:
    """Return what :func:`install` kept; None if the driver left nothing."""
    try:
        return DriverError(**read_json(log_dir / KEPT))
    except (OSError, ValueError, TypeError):
        return None


def explain(error: BaseException, log: Path) -> DriverError:
    """Return the first cause of an exception, through the processes that it passed."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause  # of ray.exceptions.RayTaskError
    kind, what = type(error).__name__, str(error)
    if isinstance(error, UserError):
        return DriverError(kind, redact(error.problem.what), redact(error.problem.remedy))
    messages = _MESSAGE.findall(what) if "raised in its creation task" in what else []  # it is only in the text
    if messages:
        kind, _, what = messages[-1].partition(": ")  # the traceback ends with it
    is_connected = "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
    died = find_dead_actor() if is_connected else ""
    if is_connected and (died or _OF_DEATHS.search(kind)) and (lost := cluster.wait_for_lost_nodes()):
        return DriverError(kind, ", ".join(f"node {address} was lost" for address in lost), _LOST)
    remedy, told = (_LAST_WORDS, died) if died else ("", f"{kind}: {redact(what[:_LONGEST].strip())}")
    if what.startswith(_NO_ENGINE) and not died:
        match = next(filter(None, map(_OF_ENGINE.search, tail(log))), None)
        what = match[1] if match else what
        told = f"an engine did not start: {redact(what[:_LONGEST])}"
        remedy = "" if is_cpu_stack() or "--enforce_eager" in sys.argv else _NO_GRAPHS
    return DriverError(kind, told, next((cure for sign, cure in _REMEDIES.items() if re.search(sign, what)), remedy))


def find_dead_actor() -> str:
    """Return which of the run's actors died first with its process or node; "" if none did. Ray is connected."""
    from ray._private import state

    time.sleep(1.0)  # until Ray knows of the death
    crashed = []
    for actor in state.actors().values():
        if actor["State"] == "DEAD":  # without a crash, an actor ends by its exception, or because the run ends
            cause = actor["DeathCause"]
            reason = cause.actor_died_error_context.Reason.Name(cause.actor_died_error_context.reason)
            if cause.HasField("oom_context") or reason in ("WORKER_DIED", "NODE_DIED"):
                crashed.append(actor)
    first = min(crashed, key=lambda actor: actor["EndTime"], default=None)
    return f"{_ROLES.get(first['ActorClassName'], first['ActorClassName'])} died (pid {first['Pid']})" if first else ""


def tail(log: Path, count: int = 0) -> list[str]:
    """Return the last lines of a log without colors and progress bars (tqdm), or all near its end; [] without a log."""
    if not log.is_file():
        return []
    with open_file(log) as file:
        file.seek(max(0, log.stat().st_size - 1_000_000))
        text = file.read().decode(errors="replace")
    lines = (_TERMINAL_CODE.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n"))
    return [line for line in lines if line and "%|" not in line][-count:]


def find(log_dir: Path, folders: Mapping[str, Path], code: int) -> Problem | None:
    """Return why a driver failed with an exit code (-n: by signal n); None if only the log can tell."""
    if full := find_full_disk(folders):
        return full
    error = read(log_dir)
    if code < 0 and not (code == -signal.SIGABRT and error):  # Ray aborts a driver that has lost its cluster
        remedy = f"if the kernel's log (dmesg) says that memory was short: {_FREE_MEMORY}"
        return Problem(f"the driver {describe_end(code)}", remedy if code == -signal.SIGKILL else "")
    return Problem(error.what, error.remedy) if error else None


def find_full_disk(folders: Mapping[str, Path]) -> Problem | None:
    """Return which folders, by what the user calls them, have no room left; None if all have some."""
    full = [name for name, folder in folders.items() if folder.is_dir() and machine.disk_free(folder) < _FULL]
    what = "; ".join(f"the disk of {name} is full: {folders[name]}" for name in full)
    return Problem(what, _FREE_DISK) if full else None


def describe_end(code: int) -> str:
    """Return how a process ended, in words."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
