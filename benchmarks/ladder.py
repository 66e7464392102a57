"""The rungs in order, first what removes the most risk; how each runs in a process of its own, and its result.

Imports nothing heavy: the ladder also starts on a machine whose stack is broken.
"""

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
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from grpo.launch.supervise import processes
from grpo.stack.checkout import CHECKOUT, git_revision
from grpo.stack.json_files import replace
from grpo.stack.problem import UserError
from grpo.stack.secrets import redact

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
_MARK = "GPU_CHECK_RUNG"  # in the environment of all that a rung starts
_LOG_CHARACTERS = 6000
_LONGEST_PARENT = 8  # characters of a folder below which the sockets of a rung's Ray still have valid paths
_noted: dict[str, Any] = {}  # by the rung of this process
_file: Path | None = None  # gets them, for the case that this process is killed


class Skipped(Exception):
    """The rung cannot run here; the message says why."""


@dataclass(frozen=True)
class Passed:
    """What a rung found: one line, and numbers by name, the unit at the end of the name."""

    line: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rung:
    """One check of the ladder: the function `module:function`, and what to do about a failure that does not say it.

    Attributes:
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
    """What became of a rung, with the numbers that :func:`note` has kept; of a failure, also the end of its output."""

    name: str
    verdict: str
    line: str
    numbers: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    seconds: float = 0.0
    traceback: str = ""
    log: str = ""


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
        return Result(rung.name, PASSED, passed.line, _noted | passed.numbers)
    except Skipped as reason:
        return Result(rung.name, SKIPPED, str(reason), dict(_noted))
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
        command = [sys.executable, "-m", "benchmarks.ladder", json.dumps(asdict(rung)), str(gpus), str(file)]
        environment = os.environ | {_MARK: mark, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, start_new_session=True, **streams)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rung.seconds)
            code = process.poll()
        finally:
            _end_marked(mark)
            with suppress(subprocess.TimeoutExpired):  # a GPU's driver may hold it even now
                process.wait(GRACE_SECONDS)
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        printed = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
    if "verdict" not in values:
        line = f"its process ended with {code}" if code is not None else f"it was ended after {rung.seconds} s"
        values |= {"name": rung.name, "verdict": FAILED, "line": line, "remedy": rung.remedy}
    log_of_failure = printed if values["verdict"] == FAILED else ""
    return Result(**values | {"seconds": round(time.monotonic() - begin, 1), "log": log_of_failure})


def _end_marked(mark: str) -> None:
    """End what a rung has left. Ray's processes and vLLM's have sessions of their own, and outlive their parents."""
    memory: set[Path] = set()
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):  # one may start another meanwhile
        left = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):  # it has ended, or is another user's
                if f"{_MARK}={mark}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    left.append(process)
        memory |= processes.find_shared_memory(process.pid for process in left)
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signum)
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
    processes.remove_shared_memory(memory)


_TRITON = ("transformers", "triton")
_STACK = ("torch", "transformers", "deepspeed", "peft")
_WHOLE = (*_STACK, "vllm", "ray", "openrlhf")
_SETUP = "run ./scripts/setup.sh --gpu, then this check again"
_KERNEL = "report it with this report: the GPU, PyTorch and Triton decide it; do not train with this kernel"
_PARITY = "see docs/parity.md: the model has random weights, so rounding alone is left, or a kernel is wrong"
_LOOP = "see docs/parity.md; docs/first-evening.md says how to report it"
_NCCL = "run it again with NCCL_DEBUG=INFO; then with NCCL_P2P_DISABLE=1; look at nvidia-smi topo -m"


def _rung(name: str, check: str, remedy: str, *packages: str, gpus: int = 1, seconds: int = 300) -> Rung:
    return Rung(name, f"benchmarks.{check}", remedy, gpus, packages, seconds)


LADDER = (
    _rung("driver", "machine:driver", "install NVIDIA's driver, and start the container with --gpus all", gpus=0),
    _rung("toolkit", "machine:toolkit", "install gcc and Python's headers (Debian: gcc, python3-dev)"),
    _rung("all-reduce", "machine:all_reduce", _NCCL, gpus=2),
    _rung("host copies", "machine:host_copies", "look at the PCIe slot and at nvidia-smi -q -d PERFORMANCE"),
    _rung("NUMA", "machine:numa", "look at nvidia-smi topo -m"),
    _rung("pinned memory", "machine:pin_memory", "free host memory, or raise the container's limit"),
    _rung("MXFP4 kernel", "kernels:mxfp4", _KERNEL, *_TRITON),
    _rung("grouped experts", "kernels:experts", _KERNEL, *_TRITON),
    _rung("attention", "kernels:attention", "set --attn_implementation eager, and report it", "triton"),
    _rung("log-probs", "kernels:log_probs", _KERNEL, "triton"),
    _rung("side path", "kernels:side_path", _KERNEL, "vllm", "peft"),
    _rung("receipt", "kernels:receipt", "report it: a sync would be refused though it is right"),
    _rung("layer", "layer:check", _KERNEL, *_TRITON, seconds=600),
    _rung("actor at full size", "actor:check", "report it: --plan promises that the shortest sequence fits", *_STACK,
          seconds=600),
    _rung("ZeRO-3 and resume", "zero3:check", _SETUP, *_STACK, seconds=600),
    _rung("engine", "engine:check", _SETUP, *_WHOLE, seconds=900),
    _rung("engine and actor at real width", "parity:check", _PARITY, *_WHOLE, seconds=600),
    _rung("adapter of the experts", "parity:check_experts", _PARITY, *_WHOLE, seconds=600),
    _rung("engine speed", "engine_speed:check", _SETUP, *_WHOLE, seconds=1200),
    _rung("one copy of the model", "one_copy:check", "set --actor_shard none or zero3, and report it: engine and actor "
          "cannot share a model here", *_WHOLE, seconds=1200),
    _rung("whole loop", "whole_loop:eager", _LOOP, *_WHOLE, seconds=900),
    _rung("whole loop with graphs", "whole_loop:graphs", _LOOP, *_WHOLE, seconds=1200),
)  # fmt: skip


def climb(
    rungs: Iterable[Rung], found: dict[str, Any], say: Callable[[Result], None], out: Path | None
) -> list[Result]:
    """Run rungs one after the other, and write the report after each: the machine itself may go down.

    Args:
        found: what :func:`benchmarks.machine.look` returned.
        say: gets each result.
        out: the report's file; None writes none.
    """
    results: list[Result] = []
    for each in rungs:
        lacking = each.find_lack(len(found["gpus"]))
        result = Result(each.name, SKIPPED, lacking) if lacking else run_apart(each, len(found["gpus"]))
        say(result)
        results.append(result)
        if out:
            report = {"time": time.time(), "git": git_revision(), **found}
            report["rungs"] = [{k: v for k, v in asdict(one).items() if v not in ("", {})} for one in results]
            out.parent.mkdir(parents=True, exist_ok=True)
            replace(out, redact(json.dumps(report, indent=2, default=str)) + "\n")
    return results


if __name__ == "__main__":  # in the process of :func:`run_apart`
    described, gpus, result = sys.argv[1:]
    module: Any = importlib.import_module("benchmarks.ladder")  # under its real name: the rungs use that module
    module._file = Path(result)
    found = module.run_here(module.Rung(**json.loads(described)), int(gpus))
    Path(result).write_text(json.dumps(asdict(found), default=str), encoding="utf-8")
