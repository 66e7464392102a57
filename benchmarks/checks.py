"""The checks in order, first what removes the most risk; how each runs in a process of its own, and its result.

Imports nothing heavy: the checks also start on a machine whose stack is broken.
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
_MARK = "GPU_CHECK"  # in the environment of all that a check starts
_LOG_CHARACTERS = 6000
_LONGEST_PARENT = 8  # characters of a folder below which the sockets of a check's Ray still have valid paths
_noted: dict[str, Any] = {}  # by the check of this process
_file: Path | None = None  # gets them, in case this process is killed


class Skipped(Exception):
    """The check cannot run here; the message says why."""


@dataclass(frozen=True)
class Passed:
    """What a check found: one line, and numbers by name, the unit at the end of the name."""

    line: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A function `module:function` of the number of GPUs, and what to do about a failure that does not say it.

    Attributes:
        gpus: the fewest that it needs.
        packages: the modules that it needs besides PyTorch.
        seconds: after which it is ended, and has failed.
        quick: the seconds that it gets with --quick; 0 if it does not run then.
        on_request: runs with --only alone.
    """

    name: str
    function: str
    remedy: str
    packages: tuple[str, ...] = ()
    gpus: int = 1
    seconds: int = 300
    quick: int = 0
    on_request: bool = False

    def find_lack(self, gpus: int) -> str:
        """Return what this machine lacks for the check; "" if nothing."""
        if gpus < self.gpus:
            needed = f"needs {self.gpus} GPUs" if self.gpus > 1 else "needs a GPU"
            return f"{needed}; PyTorch finds {gpus or 'none'}"
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(missing)}, not installed" if missing else ""


@dataclass(frozen=True)
class Result:
    """What became of a check, with the numbers given to :func:`note`; of a failure, also the end of its output."""

    name: str
    verdict: str
    line: str
    numbers: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    seconds: float = 0.0
    log: str = ""


def choose_device(gpus: int) -> str:
    """Return where a check computes: on a CPU only in tests, since checks are skipped without a GPU."""
    return "cuda" if gpus else "cpu"


def note(**numbers: Any) -> None:
    """Keep numbers of a check in progress: they are in the report even if it fails later, or is ended."""
    _noted.update(numbers)
    if _file:
        _file.write_text(json.dumps({"numbers": _noted}, default=str), encoding="utf-8")


def run_here(check: Check, gpus: int) -> Result:
    """Run a check in this process."""
    module, _, function = check.function.partition(":")
    _noted.clear()
    try:
        passed = getattr(importlib.import_module(module), function)(gpus)
        return Result(check.name, PASSED, passed.line, _noted | passed.numbers)
    except Skipped as reason:
        return Result(check.name, SKIPPED, str(reason), dict(_noted))
    except Exception as error:  # whatever it is, it is the check's result
        traceback.print_exc()
        line, remedy = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", check.remedy
        if isinstance(error, UserError):
            line, remedy = error.problem.what, error.problem.remedy or check.remedy
        return Result(check.name, FAILED, line, dict(_noted), remedy)


def run_apart(check: Check, gpus: int) -> Result:
    """Run a check in a process of its own, and end all that it started. A crash, or too many seconds, is a failure."""
    begin, mark = time.monotonic(), uuid.uuid4().hex
    parent = "/tmp" if len(tempfile.gettempdir()) > _LONGEST_PARENT else None
    with tempfile.TemporaryDirectory(prefix="gc-", dir=parent, ignore_cleanup_errors=True) as folder:
        file, log = Path(folder, "result.json"), Path(folder, "log")
        # Not with -m: the checks use this module under its own name.
        command = [sys.executable, "-c", "from benchmarks import checks; checks.main()"]
        command += [json.dumps(asdict(check)), str(gpus), str(file)]
        environment = os.environ | {_MARK: mark, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, start_new_session=True, **streams)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(check.seconds)
            code = process.poll()
        finally:
            _end_marked(mark)
            with suppress(subprocess.TimeoutExpired):  # a GPU's driver may hold it even now
                process.wait(GRACE_SECONDS)
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        printed = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
    if "verdict" not in values:
        line = f"its process ended with {code}" if code is not None else f"it was ended after {check.seconds} s"
        values |= {"name": check.name, "verdict": FAILED, "line": line, "remedy": check.remedy}
    log_of_failure = printed if values["verdict"] == FAILED else ""
    return Result(**values | {"seconds": round(time.monotonic() - begin, 1), "log": log_of_failure})


def main() -> None:
    """Run a check in the process of :func:`run_apart`."""
    global _file
    described, gpus, result = sys.argv[1:]
    _file = Path(result)
    found = run_here(Check(**json.loads(described)), int(gpus))
    _file.write_text(json.dumps(asdict(found), default=str), encoding="utf-8")


def _end_marked(mark: str) -> None:
    """End what a check has left. Ray's processes and vLLM's have sessions of their own, and outlive their parents."""
    memory: set[Path] = set()
    for signum in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):  # one may start another meanwhile
        left = processes.find_marked(mark, _MARK)
        memory |= processes.find_shared_memory(process.pid for process in left)
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signum)
        psutil.wait_procs(left, timeout=GRACE_SECONDS)
    processes.remove_shared_memory(memory)


def run_all(
    checks: Iterable[Check], found: dict[str, Any], say: Callable[[Result], None], out: Path | None
) -> list[Result]:
    """Run checks one after the other, and write the report after each: the machine itself may go down.

    Args:
        found: what :func:`benchmarks.machine.look` returned.
        say: gets each result.
        out: the report's file; None writes none.
    """
    results: list[Result] = []
    for each in checks:
        lacking = each.find_lack(len(found["gpus"]))
        result = Result(each.name, SKIPPED, lacking) if lacking else run_apart(each, len(found["gpus"]))
        say(result)
        results.append(result)
        if out:
            report = {"time": time.time(), "git": git_revision(), **found}
            report["checks"] = [{k: v for k, v in asdict(one).items() if v not in ("", {})} for one in results]
            out.parent.mkdir(parents=True, exist_ok=True)
            replace(out, redact(json.dumps(report, indent=2, default=str)) + "\n")
    return results


_TRITON = ("transformers", "triton")
_TRAINER = ("torch", "transformers", "deepspeed", "peft")
_STACK = (*_TRAINER, "vllm", "ray", "openrlhf")
_SETUP = "run ./scripts/setup.sh --gpu, then this check again"
_KERNEL = "report it with this report: the GPU, PyTorch and Triton decide it; do not train with this kernel"
_PARITY = "see docs/parity.md: the model has random weights, so rounding alone is left, or a kernel is wrong"
_LOOP = "see docs/parity.md; docs/first-evening.md says how to report it"
_NCCL = "run it again with NCCL_DEBUG=INFO; then with NCCL_P2P_DISABLE=1; look at nvidia-smi topo -m"
_DRIVER = "install NVIDIA's driver, and start the container with --gpus all"
_SHARE = "set --actor_shard none or zero3, and report it: engine and actor cannot share a model here"
_PLAN = "report it: --plan promises that the shortest sequence fits"
_LINKS = "look at the PCIe slot and at nvidia-smi -q -d PERFORMANCE"

CHECKS = (
    Check("driver", "benchmarks.machine:driver", _DRIVER, gpus=0, quick=40),
    Check("toolkit", "benchmarks.machine:toolkit", "install gcc and Python's headers (gcc, python3-dev)", quick=20),
    Check("all-reduce", "benchmarks.machine:all_reduce", _NCCL, gpus=2, quick=60),
    Check("host copies", "benchmarks.machine:host_copies", _LINKS, quick=30),
    Check("NUMA", "benchmarks.machine:numa", "look at nvidia-smi topo -m", quick=10),
    Check("pinned memory", "benchmarks.machine:pin_memory", "free host memory, or raise the container's limit"),
    Check("MXFP4 kernel", "benchmarks.kernels:mxfp4", _KERNEL, _TRITON, quick=30),
    Check("grouped experts", "benchmarks.kernels:experts", _KERNEL, _TRITON, quick=30),
    Check("attention", "benchmarks.kernels:attention", "set --attn_implementation eager, and report it", ("triton",),
          quick=40),
    Check("log-probs", "benchmarks.kernels:log_probs", _KERNEL, ("triton",), quick=30),
    Check("checksum", "benchmarks.kernels:checksum", "report it: a sync would be refused though it is right"),
    Check("layer", "benchmarks.layer:check", _KERNEL, _TRITON, seconds=600),
    Check("actor at full size", "benchmarks.actor:check", _PLAN, _TRAINER, seconds=600),
    Check("ZeRO-3 and resume", "benchmarks.zero3:check", _SETUP, _TRAINER, seconds=600),
    Check("engine", "benchmarks.whole_loop:short", _LOOP, _STACK, seconds=600, quick=290),
    Check("engine and actor at real width", "benchmarks.parity:check", _PARITY, _STACK, seconds=600),
    Check("adapter of the experts", "benchmarks.parity:check_experts", _PARITY, _STACK, seconds=600),
    Check("engine speed", "benchmarks.engine_speed:check", _SETUP, _STACK, seconds=1200),
    Check("experts by Marlin", "benchmarks.parity:check_marlin", _SETUP, _STACK, seconds=900, on_request=True),
    Check("one copy of the model", "benchmarks.actor:check_shared", _SHARE, _STACK, seconds=1200),
    Check("whole loop", "benchmarks.whole_loop:eager", _LOOP, _STACK, seconds=900),
    Check("whole loop with graphs", "benchmarks.whole_loop:graphs", _LOOP, _STACK, seconds=1200),
)  # fmt: skip
