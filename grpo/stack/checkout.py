"""The checkout: its location, the stack it installed, its revision."""

import os
import subprocess
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


TINY_MODEL = CHECKOUT / ".cache" / "tiny-model"  # where train_grpo.sh --tiny makes it
GPU_REPORT = CHECKOUT / ".cache" / "gpu_check.json"  # of scripts.gpu_check


def requirements(name: str) -> Path:
    """Return a file of requirements/: that of the installed OpenRLHF, if there is one, else the common one."""
    import importlib.metadata  # here: it takes as long as all else that lists the settings

    try:
        version = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    own = CHECKOUT / "requirements" / version / name
    return own if own.is_file() else CHECKOUT / "requirements" / name


def is_cpu_stack() -> bool:
    """Return whether DeepSpeed and vLLM run without GPUs (`scripts/env.sh` decides by what is installed)."""
    return os.environ.get("DS_ACCELERATOR") == "cpu"


def git_revision() -> dict[str, Any] | None:
    """Return the checkout's commit and whether files differ from it; None if it is not a git checkout."""
    git = ["git", "-C", str(CHECKOUT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}
