"""A rung: what it needs, how it runs in a process of its own, and its result. Imports nothing heavy."""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grpo.launch.supervise import processes
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
_MARK = "GPU_CHECK_RUNG"  # in the environment of all that a rung starts
_LOG_CHARACTERS = 6000
_LONGEST_PARENT = 20  # characters of a folder below which Ray's sockets still have valid paths
_noted: dict[str, Any] = {}  # by the rung of this process
_file: Path | None = None  # gets them, for the case that this process is killed


class Skipped(Exception):
    """The rung cannot run here; the message says why."""


@dataclass(frozen=True)
class Passed:
    """What a rung found: one line, and numbers by name, the unit at the end of the name."""

    line: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rung:
    """One check of the ladder.

    Attributes:
        name: for people and for `--only`.
        check: `module:function`.
        remedy: what to do about a failure that brings no remedy of its own.
        gpus: the fewest that it needs.
        packages: the modules that it needs besides PyTorch.
        seconds: after which it is ended, and has failed.
    """

    name: str
    check: str
    remedy: str
    gpus: int = 1
    packages: tuple[str, ...] = ()
    seconds: int = 300

    def find_lack(self, gpus: int) -> str:
        """Return what this machine lacks for the rung; "" if nothing."""
        if gpus < self.gpus:
            needed = f"needs {self.gpus} GPUs" if self.gpus > 1 else "needs a GPU"
            return f"{needed}; PyTorch finds {gpus or 'none'}"
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(missing)}, not installed" if missing else ""


@dataclass(frozen=True)
class Result:
    """What became of a rung.

    Attributes:
        line: numbers, what is wrong, or why it was skipped.
        numbers: of what passed; of a failure, those that :func:`note` has kept.
        log: of a failure, the end of what its process printed.
    """

    name: str
    verdict: str
    line: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    seconds: float = 0.0
    traceback: str = ""
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the result for the report; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value not in ("", {})}


def choose_device(gpus: int) -> str:
    """Return where a rung computes: on a CPU only in tests, since the ladder skips it without a GPU."""
    return "cuda" if gpus else "cpu"


def note(**numbers: Any) -> None:
    """Keep numbers of a rung in progress: they are in the report even if it fails later, or is ended."""
    _noted.update(numbers)
    if _file:
        _file.write_text(json.dumps({"numbers": _noted}, default=str), encoding="utf-8")


def run_here(rung: Rung, gpus: int) -> Result:
    """Run a rung in this process."""
    module, _, function = rung.check.partition(":")
    _noted.clear()
    try:
        passed = getattr(importlib.import_module(module), function)(gpus)
        return Result(rung.name, PASSED, passed.line, passed.numbers)
    except Skipped as reason:
        return Result(rung.name, SKIPPED, str(reason))
    except Exception as error:  # whatever it is, it is the rung's result
        line, remedy = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", rung.remedy
        if isinstance(error, UserError):
            line, remedy = error.problem.what, error.problem.remedy or rung.remedy
        return Result(rung.name, FAILED, line, dict(_noted), remedy, traceback=traceback.format_exc())


def run_apart(rung: Rung, gpus: int) -> Result:
    """Run a rung in a process of its own, and end all that it started. A crash, or too many seconds, is a failure."""
    begin, mark = time.monotonic(), uuid.uuid4().hex
    parent = "/tmp" if len(tempfile.gettempdir()) > _LONGEST_PARENT else None
    with tempfile.TemporaryDirectory(prefix="gc-", dir=parent, ignore_cleanup_errors=True) as folder:
        file, log = Path(folder, "result.json"), Path(folder, "log")
        command = [sys.executable, "-m", "benchmarks.rung", json.dumps(asdict(rung)), str(gpus), str(file)]
        environment = os.environ | {_MARK: mark, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            with suppress(subprocess.TimeoutExpired):
                process.wait(rung.seconds)
            code = process.poll()
        finally:
            end_marked(mark)
        process.wait()
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        printed = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
    seconds = round(time.monotonic() - begin, 1)
    if "verdict" not in values:
        line = f"its process ended with {code}" if code is not None else f"it was ended after {rung.seconds} s"
        values |= {"name": rung.name, "verdict": FAILED, "line": line, "remedy": rung.remedy}
    return Result(**values | {"seconds": seconds, "log": printed if values["verdict"] == FAILED else ""})


def end_marked(mark: str) -> None:
    """End what a rung has left. Ray's processes and vLLM's have sessions of their own, and outlive their parents."""
    memory: set[Path] = set()
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):  # one may start another meanwhile
        left = _find_marked(mark)
        memory |= processes.find_shared_memory(process.pid for process in left)
        for process in left:
            processes.send(process, signum)
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
    processes.remove_shared_memory(memory)


def _find_marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # it has ended, or is another user's
            if f"{_MARK}={mark}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def main() -> None:
    """Run the rung that :func:`run_apart` describes on the command line, and write its result."""
    described, gpus, file = sys.argv[1:]
    module: Any = importlib.import_module("benchmarks.rung")  # under its real name: the rungs use that module
    module._file = Path(file)
    result = module.run_here(module.Rung(**json.loads(described)), int(gpus))
    Path(file).write_text(json.dumps(asdict(result), default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
