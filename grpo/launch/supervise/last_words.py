"""Why the driver fails, in its own process: what has died, or the first exception, and the remedy of frequent ones.

The exceptions of all processes reach the driver through Ray. The end of its log is whatever was written last.
"""

import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from grpo.stack import cluster
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.json_files import open_file, read_json, replace
from grpo.stack.problem import UserError
from grpo.stack.secrets import redact

LONGEST = 600
FILE_VARIABLE = "GRPO_FAILURE_FILE"
LOG = "driver.log"
LOST_REMEDY = (
    "see whether the machine runs and has a network; start Ray on it again, or on another one, until the cluster has "
    "enough free GPUs"
)
FREE_DISK = "free disk space, or set --ckpt_path or --metrics_dir to another disk"
FREE_MEMORY = "end other programs, or see the host memory in --plan"
_REMEDIES = {
    r"No space left on device|Disk quota exceeded": FREE_DISK,
    r"Too many open files": "raise the limit of open files (ulimit -Hn), and see that no other user holds connections "
    "to the run's ports",
    r"CUDA (error: )?out of memory": "lower --micro_train_batch_size, --micro_rollout_batch_size, or "
    "--generate_max_len; see the GPU memory in --plan",
    r"node running low on memory": f"the machine lacks memory, so Ray killed a worker: {FREE_MEMORY}",
}
_NO_GRAPHS = "if this says nothing of another cause, start engines without CUDA graphs: --no-graphs"
_NOTICE_SECONDS = 1.0  # until Ray knows of a death
_ROLES = {
    "LLMRayActor": "an engine",
    "RolloutRayActor": "an engine",
    "PolicyWorker": "an actor rank",
    "JudgeActor": "the judge",
}
# Exceptions that only say that another process has died
_OF_DEATHS = re.compile(r"(Died|Unavailable|Dead|Lost|Crashed|Actor)Error$")
_CREATION = "raised in its creation task"  # Ray, of an actor that did not start
_NO_ENGINE = "Engine core initialization failed"  # vLLM, of whatever kept an engine's processes from starting
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MESSAGE = re.compile(r"\b[A-Za-z_][\w.]*(?:Error|Exception): .+")
_OF_ENGINE = re.compile(r"\((?:EngineCore|Worker)\S* pid=\d+\)\S* ERROR .*?\] ([A-Za-z_][\w.]*(?:Error|Exception): .+)")


@dataclass(frozen=True)
class LastWords:
    """What ended the driver: the exception's type, what it says or what has died, and the remedy ("" if none)."""

    kind: str
    what: str
    remedy: str = ""


def locate_file(log_dir: Path) -> Path:
    """Return where the last words are kept."""
    return log_dir / "failure.json"


def install() -> None:
    """Keep the exception that ends this process, if it is the driver of a run. Call once."""
    file, before = os.environ.get(FILE_VARIABLE), sys.excepthook
    if not file:
        return

    def keep(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            replace(Path(file), json.dumps(asdict(explain(error, Path(file).with_name(LOG)))) + "\n")
        except OSError as failure:  # a full disk: the launcher sees it by itself
            print(f"the exception was not kept: {failure}", file=sys.stderr)
        before(kind, error, trace)

    sys.excepthook = keep


def read(log_dir: Path) -> LastWords | None:
    """Return what :func:`install` kept; None if the driver left nothing."""
    try:
        return LastWords(**read_json(locate_file(log_dir)))
    except (OSError, ValueError, TypeError):
        return None


def explain(error: BaseException, log: Path) -> LastWords:
    """Return the first cause of an exception, through the processes that it passed."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause  # of ray.exceptions.RayTaskError
    kind, what = type(error).__name__, str(error)
    if isinstance(error, UserError):
        return LastWords(kind, redact(error.problem.what), redact(error.problem.remedy))
    if _CREATION in what and (messages := _MESSAGE.findall(what)):  # the exception is only in the text
        kind, _, what = messages[-1].partition(": ")
    died = find_dead_actor()
    if (died or _OF_DEATHS.search(kind)) and (lost := find_lost_nodes()):
        return LastWords(kind, ", ".join(f"node {address} was lost" for address in lost), LOST_REMEDY)
    remedy, told = "", f"{kind}: {redact(what[:LONGEST].strip())}"
    if died:
        role, pid = died
        told = f"{role} died (pid {pid})"
        what += "\n".join(line for line in tail(log) if re.search(rf"\bpid={pid}\b", line))
    elif what.startswith(_NO_ENGINE):
        match = next(filter(None, map(_OF_ENGINE.search, tail(log))), None)
        what = match[1] if match else what
        told = f"an engine did not start: {redact(what[:LONGEST])}"
        remedy = "" if is_cpu_stack() or "--enforce_eager" in sys.argv else _NO_GRAPHS
    return LastWords(kind, told, next((cure for sign, cure in _REMEDIES.items() if re.search(sign, what)), remedy))


def find_lost_nodes() -> list[str]:
    """Return the addresses of nodes that a run on several has lost."""
    return cluster.wait_for_lost_nodes() if _is_connected() else []


def find_dead_actor() -> tuple[str, int] | None:
    """Return what the run's first actor was that died by other means than an exception, and its pid; None if none."""
    if not _is_connected():
        return None
    from ray._private import state

    time.sleep(_NOTICE_SECONDS)
    dead = [actor for actor in state.actors().values() if actor["State"] == "DEAD" and _is_crash(actor["DeathCause"])]
    if not dead:
        return None
    first = min(dead, key=lambda actor: actor["EndTime"])
    return _ROLES.get(first["ActorClassName"], first["ActorClassName"]), first["Pid"]


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def _is_crash(cause: Any) -> bool:
    """Tell whether an actor died with its process or its node, not by its exception or because the run ended."""
    context = cause.actor_died_error_context
    return cause.HasField("oom_context") or context.Reason.Name(context.reason) in ("WORKER_DIED", "NODE_DIED")


def tail(log: Path, count: int | None = None) -> list[str]:
    """Return the last lines of a log without colors and progress bars (tqdm), or all near its end; [] without a log."""
    try:
        with open_file(log) as file:
            file.seek(max(0, log.stat().st_size - 1_000_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = (_TERMINAL_CODE.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n"))
    return [line for line in lines if line and "%|" not in line][-(count or 0) :]
