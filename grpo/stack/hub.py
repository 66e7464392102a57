"""A model's folder: a path, or a snapshot of the hub; and remedies for a model that cannot be loaded."""

import os
import re
from pathlib import Path

from grpo.stack.checkout import TINY_MODEL


def model_folder(name: str) -> str:
    """Return the folder of a model: `name` itself, or that hub id's snapshot in the local hub cache.

    Nothing is downloaded. A name that is neither is returned unchanged, for the caller to explain.
    """
    if os.path.isdir(name):
        return os.path.abspath(name)
    from huggingface_hub import snapshot_download  # a third of a second, for a hub id alone
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return name


def downloaded_folder(name: str) -> Path:
    """Return the folder of a model: `name` itself, or that hub id's snapshot, which is downloaded if it is missing."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))


def find_id(folder: str) -> str | None:
    """Return the hub id of a snapshot in a hub cache; None for another folder."""
    snapshot = re.search(r"/models--([^/]+)/snapshots/[^/]+/*$", folder)
    return snapshot[1].replace("--", "/") if snapshot else None


def is_id(name: str) -> bool:
    """Return whether a name that has no folder is that of a model on the hub: OWNER/MODEL."""
    return not name.startswith(("/", ".", "~")) and name.count("/") == 1 and not Path(name).exists()


def absence(name: str) -> tuple[str, str]:
    """Return what is wrong with a model name that has no folder, and the remedy."""
    path = Path(name).absolute()
    if path.is_relative_to(TINY_MODEL):
        return "is not built yet", "./train_grpo.sh --tiny builds it; so does --tiny --check"
    if path.exists():
        return "is a file", "name the folder of the checkpoint"
    if not is_id(name):
        hint = "; ~ is not expanded inside quotes" if name.startswith("~") else ""
        return "is not a folder", f"name the folder of a checkpoint, or a hub id in the local cache{hint}"
    download = f"hf download {name} --exclude 'original/*' 'metal/*', or name a folder"
    return "is neither a folder nor a model in the hub's cache", download


def explain(reason: str) -> str:
    """Return what helps if transformers cannot load a tokenizer, by the reason that it gives."""
    if "TokenizersBackend" in reason:  # transformers 5 saves this class
        return 'set "tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
    return "download or copy the model again"
