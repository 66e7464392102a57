"""The rungs in order: first what removes the most risk."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import rung
from benchmarks.rung import Result, Rung
from grpo.stack.checkout import git_revision
from grpo.stack.json_files import replace
from grpo.stack.secrets import redact

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
    _rung("attention", "kernels:attention", "set ATTN_IMPLEMENTATION=eager, and report it", "triton"),
    _rung("log-probs", "kernels:log_probs", _KERNEL, "triton"),
    _rung("side path", "side_path:check", _KERNEL, "vllm", "peft"),
    _rung("receipt", "kernels:receipt", "report it: a sync would be refused though it is right"),
    _rung("layer", "layer:check", _KERNEL, *_TRITON, seconds=600),
    _rung("actor at full size", "actor:check", "report it: --plan promises that the shortest sequence fits", *_STACK,
          seconds=600),
    _rung("ZeRO-3 and resume", "zero3:check", _SETUP, *_STACK, seconds=600),
    _rung("engine", "engine:check", _SETUP, *_WHOLE, seconds=900),
    _rung("engine and actor at real width", "width:check", _PARITY, *_WHOLE, seconds=600),
    _rung("adapter of the experts", "width:check_experts", _PARITY, *_WHOLE, seconds=600),
    _rung("engine speed", "engine_speed:check", _SETUP, *_WHOLE, seconds=1200),
    _rung("one copy of the model", "one_copy:check", "set ACTOR_SHARD=none or zero3, and report it: engine and actor "
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
        result = Result(each.name, rung.SKIPPED, lacking) if lacking else rung.run_apart(each, len(found["gpus"]))
        say(result)
        results.append(result)
        if out:
            report = {"time": time.time(), "git": git_revision(), **found}
            report["rungs"] = [one.as_dict() for one in results]
            out.parent.mkdir(parents=True, exist_ok=True)
            replace(out, redact(json.dumps(report, indent=2, default=str)) + "\n")
    return results
