"""The rungs in order: first what removes the most risk."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grpo.stack.checkout import git_revision
from grpo.stack.json_files import replace
from grpo.stack.secrets import redact
from scripts.gpu_check import rung
from scripts.gpu_check.rung import Result, Rung

_STACK = ("torch", "transformers", "deepspeed", "peft")
_WHOLE = (*_STACK, "vllm", "ray", "openrlhf")
_SETUP = "run ./scripts/setup.sh --gpu, then this check again"
_KERNEL = "report it with this report: the GPU, PyTorch and Triton decide it; do not train with this kernel"
_ACTOR = "report it: --plan promises that the shortest sequence fits"
_PARITY = "see docs/parity.md: the model has random weights, so rounding alone is left, or a kernel is wrong"
_COPY = "set ACTOR_SHARD=none or zero3, and report it: engine and actor cannot share a model here"
_LOOP = "see docs/parity.md; docs/first-evening.md says how to report it"
LADDER = (
    Rung("driver", "machine:driver", "install NVIDIA's driver, and start the container with --gpus all", gpus=0),
    Rung("toolkit", "machine:toolkit", "install gcc and Python's headers (Debian: gcc, python3-dev)"),
    Rung(
        "all-reduce",
        "machine:all_reduce",
        "run it again with NCCL_DEBUG=INFO; then with NCCL_P2P_DISABLE=1; look at nvidia-smi topo -m",
        gpus=2,
    ),
    Rung("host copies", "machine:host_copies", "look at the PCIe slot and at nvidia-smi -q -d PERFORMANCE"),
    Rung("NUMA", "machine:numa", "look at nvidia-smi topo -m"),
    Rung("pinned memory", "machine:pin_memory", "free host memory, or raise the container's limit"),
    Rung("MXFP4 kernel", "kernels:mxfp4", _KERNEL, packages=("triton",)),
    Rung("grouped experts", "kernels:experts", _KERNEL, packages=("transformers", "triton")),
    Rung("attention", "kernels:attention", "set ATTN_IMPLEMENTATION=eager, and report it", packages=("triton",)),
    Rung("log-probs", "kernels:log_probs", _KERNEL, packages=("triton",)),
    Rung("side path", "side_path:check", _KERNEL, packages=("vllm", "peft")),
    Rung("receipt", "kernels:receipt", "report it: a sync would be refused though it is right"),
    Rung("layer", "layer:check", _KERNEL, packages=("transformers", "triton"), seconds=600),
    Rung("actor at full size", "actor:check", _ACTOR, packages=_STACK, seconds=600),
    Rung("ZeRO-3 and resume", "trainer:check", _SETUP, packages=_STACK, seconds=600),
    Rung("engine", "engine:check", _SETUP, packages=_WHOLE, seconds=900),
    Rung("engine and actor at real width", "width:check", _PARITY, packages=_WHOLE, seconds=600),
    Rung("adapter of the experts", "width:check_experts", _PARITY, packages=_WHOLE, seconds=600),
    Rung("engine speed", "engine_speed:check", _SETUP, packages=_WHOLE, seconds=1200),
    Rung("one copy of the model", "one_copy:check", _COPY, packages=_WHOLE, seconds=1200),
    Rung("whole loop", "whole_loop:eager", _LOOP, packages=_WHOLE, seconds=900),
    Rung("whole loop with graphs", "whole_loop:graphs", _LOOP, packages=_WHOLE, seconds=1200),
)


def climb(
    rungs: Iterable[Rung], found: dict[str, Any], say: Callable[[Result], None], out: Path | None
) -> list[Result]:
    """Run rungs one after the other, and write the report after each: the machine itself may go down.

    Args:
        found: what :func:`scripts.gpu_check.seen.look` returned.
        say: gets each result.
        out: the report's file; None writes none.
    """
    results = []
    for each in rungs:
        lacking = each.find_lack(len(found["gpus"]))
        result = Result(each.name, rung.SKIPPED, lacking) if lacking else rung.run_apart(each, len(found["gpus"]))
        say(result)
        results.append(result)
        if out:
            write(out, found, results)
    return results


def write(out: Path, found: dict[str, Any], results: Iterable[Result]) -> None:
    """Write the report, without the values of secret variables."""
    report = {"time": time.time(), "git": git_revision(), **found, "rungs": [result.as_dict() for result in results]}
    out.parent.mkdir(parents=True, exist_ok=True)
    replace(out, redact(json.dumps(report, indent=2, default=str)) + "\n")
