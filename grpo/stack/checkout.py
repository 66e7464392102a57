"""The checkout: its location, the stack it installed, its revision, and the OpenRLHF that it verified."""

import os
import subprocess
from pathlib import Path
from typing import Any

from grpo.stack.problem import UserError

CHECKOUT = Path(__file__).resolve().parents[2]
TINY_MODEL = CHECKOUT / ".cache" / "tiny-model"  # where train_grpo.sh --tiny makes it
GPU_REPORT = CHECKOUT / ".cache" / "gpu_check.json"  # of scripts.gpu_check
DIGEST_VARIABLE = "GRPO_PATCH_DIGEST"  # of the patched package that the launcher verified


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


def check_digest(package_dir: str | Path) -> None:
    """Refuse an OpenRLHF other than the one that the launcher verified; without DIGEST_VARIABLE, check nothing.

    The `guard` patch calls this when ``openrlhf`` is imported: in the driver and in every Ray worker, on every node.
    """
    import patches  # imports importlib.metadata, as above

    expected = os.environ.get(DIGEST_VARIABLE)
    if expected and (digest := patches.digest(Path(package_dir))) != expected:
        raise UserError(
            f"OpenRLHF in {package_dir} has patch digest {digest[:12]}, but this run was started with "
            f"{expected[:12]}. Either the package changed during the run, or this node has another installation",
            "run ./apply_patches.sh status on this machine, and start the run again",
        )
