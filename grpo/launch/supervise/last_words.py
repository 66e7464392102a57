"""Keeps the exception that ended the driver, as fields, for the launcher to print.

The exceptions of all processes reach the driver through Ray. The end of its log is whatever was written last.
"""

import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from types import TracebackType

from grpo.launch.supervise import witness
from grpo.stack import cluster
from grpo.stack.json_files import open_file, read_json, replace
from grpo.stack.problem import UserError
from grpo.stack.secrets import redact

LONGEST = 600
# Exceptions that only say that another process has died.
OF_DEATHS = {
    *("ActorDiedError", "ActorUnavailableError", "EngineDeadError", "NodeDiedError", "ObjectLostError"),
    *("OwnerDiedError", "RayActorError", "WorkerCrashedError"),
}
_CREATION = "raised in its creation task"  # Ray, of an actor that did not start
FILE_VARIABLE = "GRPO_FAILURE_FILE"
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MESSAGE = re.compile(r"\b[A-Za-z_][\w.]*(?:Error|Exception): .+")
NO_ENGINE = "Engine core initialization failed"  # vLLM, of whatever kept an engine's processes from starting
_OF_ENGINE = re.compile(r"\((?:EngineCore|Worker)\S* pid=\d+\)\S* ERROR .*?\] ([A-Za-z_][\w.]*(?:Error|Exception): .+)")


@dataclass(frozen=True)
class LastWords:
    """What ended the driver.

    Attributes:
        kind: the exception's type.
        what: its message.
        remedy: "" if it has none.
        living: the processes with a role that lived when it reached the driver. They are not its cause.
        lost: the addresses of nodes that the run has lost.
    """

    kind: str
    what: str
    remedy: str
    living: list[int]
    lost: list[str] = field(default_factory=list)


def locate_file(log_dir: Path) -> Path:
    """Return where the exception is kept."""
    return log_dir / "failure.json"


def install() -> None:
    """Keep the exception that ends this process, if it is the driver of a run. Call once."""
    file, before = os.environ.get(FILE_VARIABLE), sys.excepthook
    if not file:
        return

    def keep(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            replace(Path(file), json.dumps(asdict(add_nodes(find_first_cause(error)))) + "\n")
        except OSError as failure:  # a full disk: the launcher sees it by itself
            print(f"the exception was not kept: {failure}", file=sys.stderr)
        before(kind, error, trace)

    sys.excepthook = keep


def find_first_cause(error: BaseException) -> LastWords:
    """Return the first cause of an exception, through the processes that it passed."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause  # of ray.exceptions.RayTaskError
    kind = type(error).__name__
    if isinstance(error, UserError):
        return LastWords(kind, redact(error.problem.what), redact(error.problem.remedy), witness.find_living())
    what = str(error)
    if _CREATION in what and (messages := _MESSAGE.findall(what)):  # the exception is only in the text
        kind, _, what = messages[-1].partition(": ")
    return LastWords(kind, redact(what[:LONGEST].strip()), "", witness.find_living())


def add_nodes(words: LastWords) -> LastWords:
    """Add the nodes that the cluster has lost, if something died; the driver is still connected to Ray."""
    return changed(words, lost=cluster.wait_for_lost_nodes()) if words.kind in OF_DEATHS else words


def read(log_dir: Path) -> LastWords | None:
    """Return what :func:`install` kept; None if the driver left nothing."""
    try:
        return LastWords(**read_json(locate_file(log_dir)))
    except (OSError, ValueError, TypeError):
        return None


def find_words(pid: int, log: Path) -> str | None:
    """Return the last exception that a process wrote to the driver's log, where Ray names the writer of each line."""
    mark = f"pid={pid})"
    matches = [match for line in _lines(log) if mark in line and (match := _MESSAGE.search(line))]
    return redact(matches[-1][0][:LONGEST]) if matches else None


def find_engine_failure(log: Path) -> str | None:
    """Return the first exception in the driver's log with which a process of an engine failed to start."""
    match = next(filter(None, map(_OF_ENGINE.search, _lines(log))), None)
    return redact(match[1][:LONGEST]) if match else None


def tail(path: Path, count: int) -> list[str]:
    """Return the last lines of a text file without progress bars (tqdm), [] if it is missing."""
    try:
        with open_file(path) as file:
            file.seek(max(0, path.stat().st_size - 200_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = (_TERMINAL_CODE.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n"))
    return [line for line in lines if line and "%|" not in line][-count:]


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
