"""A rung: what it needs, how it runs in a process of its own, and its result. Imports nothing heavy."""

import importlib
import importlib.util
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo.stack.problem import UserError
from scripts.gpu_check import kept

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_LOG_CHARACTERS = 6000
_noted: dict[str, Any] = {}  # by the rung of this process
_notes: Path | None = None  # where they are kept, for the case that this process is killed


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


def run_here(rung: Rung, gpus: int, notes: Path | None = None) -> Result:
    """Run a rung in this process.

    Args:
        notes: the file in which :func:`note` keeps numbers.
    """
    global _notes
    _notes = notes
    module, _, function = rung.check.partition(":")
    begin = time.monotonic()

    _noted.clear()

    def result(verdict: str, line: str, numbers: Mapping[str, Any] | None = None, **more: Any) -> Result:
        seconds = round(time.monotonic() - begin, 1)
        return Result(rung.name, verdict, line, _noted | dict(numbers or {}), seconds=seconds, **more)

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
    return result(PASSED, passed.line, passed.numbers)


def note(**numbers: Any) -> None:
    """Keep numbers of a rung in progress: they are in the report even if it fails later, or is ended."""
    _noted.update(numbers)
    if _notes:
        _notes.write_text(json.dumps(_noted, default=str), encoding="utf-8")


def run_apart(rung: Rung, gpus: int) -> Result:
    """Run a rung in a process of its own, and end all that it started. A crash, or too many seconds, is a failure."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        file, notes, log = (Path(folder, name) for name in ("result.json", "notes.json", kept.LOG))
        command = [sys.executable, "-m", "scripts.gpu_check.rung", json.dumps(asdict(rung)), str(gpus), str(file)]
        code = kept.run([*command, str(notes)], Path(folder), rung.seconds)
        printed = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
        seconds = round(time.monotonic() - begin, 1)
        if file.is_file():
            values = json.loads(file.read_text(encoding="utf-8"))
            return Result(**values | {"seconds": seconds, "log": printed if values["verdict"] == FAILED else ""})
        line = f"its process ended with {code}" if code is not None else f"it was ended after {rung.seconds} s"
        numbers = json.loads(notes.read_text(encoding="utf-8")) if notes.is_file() else {}
    return Result(rung.name, FAILED, line, numbers, remedy=rung.remedy, seconds=seconds, log=printed)


def main() -> None:
    """Run the rung that :func:`run_apart` describes on the command line, and write its result."""
    described, gpus, file, notes = sys.argv[1:]
    # Under its real name: the rungs use that module.
    rung = importlib.import_module("scripts.gpu_check.rung")
    result = rung.run_here(rung.Rung(**json.loads(described)), int(gpus), Path(notes))
    Path(file).write_text(json.dumps(asdict(result), default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
