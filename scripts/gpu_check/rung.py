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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
GRACE_SECONDS = 20  # in which an interrupted rung ends what it started
_LOG_CHARACTERS = 6000


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
        check: `module:function` of this package.
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

    def lacks(self, gpus: int) -> str:
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


def device_of(gpus: int) -> str:
    """Return where a rung computes: on a CPU only in tests, since the ladder skips it without a GPU."""
    return "cuda" if gpus else "cpu"


def run_here(rung: Rung, gpus: int) -> Result:
    """Run a rung in this process."""
    module, _, function = rung.check.partition(":")
    begin = time.monotonic()

    def result(verdict: str, line: str, **more: Any) -> Result:
        return Result(rung.name, verdict, line, seconds=round(time.monotonic() - begin, 1), **more)

    try:
        passed = getattr(importlib.import_module(f"scripts.gpu_check.{module}"), function)(gpus)
    except Skipped as reason:
        return result(SKIPPED, str(reason))
    except UserError as error:
        remedy = error.problem.remedy or rung.remedy
        return result(FAILED, error.problem.what, remedy=remedy, traceback=traceback.format_exc())
    except Exception as error:  # whatever it is, it is the rung's result
        line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return result(FAILED, line, remedy=rung.remedy, traceback=traceback.format_exc())
    return result(PASSED, passed.line, numbers=dict(passed.numbers))


def run_apart(rung: Rung, gpus: int) -> Result:
    """Run a rung in a process of its own. A crash, or more than its seconds, is a failure."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        file, log = Path(folder, "result.json"), Path(folder, "log")
        command = [sys.executable, "-m", "scripts.gpu_check.rung", json.dumps(asdict(rung)), str(gpus), str(file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=CHECKOUT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            code = _wait(process, rung.seconds)
        printed = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
        seconds = round(time.monotonic() - begin, 1)
        if not file.is_file():
            line = f"its process ended with {code}" if code is not None else f"it was ended after {rung.seconds} s"
            return Result(rung.name, FAILED, line, remedy=rung.remedy, seconds=seconds, log=printed)
        values = json.loads(file.read_text(encoding="utf-8"))
    return Result(**values | {"seconds": seconds, "log": printed if values["verdict"] == FAILED else ""})


def _wait(process: subprocess.Popen, seconds: float) -> int | None:
    """Return a process's exit code; None if it had to be ended, with all that it started."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C: it ends Ray, and what Ray started
    except BaseException:  # Ctrl-C does not reach its session
        os.killpg(process.pid, signal.SIGINT)
        raise
    finally:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None


def main() -> None:
    """Run the rung that :func:`run_apart` describes on the command line, and write its result."""
    described, gpus, file = sys.argv[1:]
    # Under its real name: the rungs raise that module's exceptions.
    rung = importlib.import_module("scripts.gpu_check.rung")
    result = rung.run_here(rung.Rung(**json.loads(described)), int(gpus))
    Path(file).write_text(json.dumps(asdict(result), default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
