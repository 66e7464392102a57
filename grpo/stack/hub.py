"""A model's folder: a path, or a snapshot in the local hub cache."""

import os
from pathlib import Path

from grpo.stack.checkout import TINY_MODEL


def model_folder(name: str) -> str:
    """Return the folder of a model: `name` itself, or the snapshot of that hub id in the local hub cache.

    Nothing is downloaded. A name that is neither stays as it is, for the caller to explain.
    """
    if os.path.isdir(name):
        return os.path.abspath(name)
    home = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub"))) / f"models--{name.replace('/', '--')}"
    reference = cache / "refs" / "main"
    if reference.is_file():
        snapshot = cache / "snapshots" / reference.read_text().strip()
        if snapshot.is_dir():
            return str(snapshot)
    return name


def absence(name: str) -> tuple[str, str]:
    """Return what is wrong with the name of a model for which there is no folder, and the remedy."""
    path = Path(name).absolute()
    if path.is_relative_to(TINY_MODEL):
        return "is not built yet", "./train_grpo.sh --tiny builds it; so does --tiny --check"
    if path.exists():
        return "is a file", "name the folder of the checkpoint"
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        hint = "; ~ stands for nothing inside quotes" if name.startswith("~") else ""
        return "is no folder", f"name the folder of a checkpoint, or a hub id that is in the hub's cache{hint}"
    download = f"hf download {name} --exclude 'original/*' 'metal/*', or name a folder"
    return "is neither a folder nor a model in the hub's cache", download
