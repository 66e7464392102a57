"""What a run runs on: the installed packages against the pins, and what must be equal on every node of a cluster."""

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import patches
from grpo.model import mxfp4_kernel
from grpo.stack.checkout import CHECKOUT, is_cpu_stack
from grpo.stack.problem import Problem

CODE = ("grpo", "reward", "patches", "eval", "data")
LARGE = 100_000_000  # bytes; a model's weights would take minutes to read
SAME = "install the same checkout in the same folder there: git pull, ./scripts/setup.sh, ./apply_patches.sh"
_COPY = "copy it there under the same path, or keep it in a folder that all nodes share"
_SHOWN = ("openrlhf", "ray", "vllm", "deepspeed", "transformers")
_PIN = re.compile(r"([\w.-]+)(?:\[.*\])?==([\w.]+)")

Facts = Mapping[str, str | None]


def check_packages() -> Iterator[Problem]:
    """Find a pinned package of another version."""
    for name, wanted in pins().items():
        if (found := find_version(name)) != wanted:
            yield Problem(f"{name} is {found}, but the pinned version is {wanted}", "run scripts/setup.sh")


def check_kernel() -> Iterator[Problem]:
    """Find a compiled kernel that does not load. Setup compiles a missing one before a run."""
    if (kernel := mxfp4_kernel.library()).exists() and not mxfp4_kernel.loads():
        yield Problem(
            f"the compiled MXFP4 kernel {kernel} does not load", "run scripts/setup.sh, which compiles it again"
        )


def describe() -> str:
    """Return the line that names OpenRLHF and what it runs on."""
    found = {name.removesuffix("-cpu"): find_version(name) for name in pins()}
    return "software    " + ", ".join(f"{name} {found[name]}" for name in _SHOWN)


def find_version(name: str) -> str:
    """Return the version of a package, or "missing"."""
    try:
        # A local part ("+cpu") names the build, not the version.
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def pins() -> dict[str, str]:
    """Return the exactly pinned packages for the stack in use and the installed OpenRLHF.

    They stand in pyproject.toml. Another supported OpenRLHF has those that differ in its folder of requirements/.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["cpu" if is_cpu_stack() else "gpu"]
    pinned = {match[1]: match[2] for match in map(_PIN.fullmatch, lines) if match}
    others = CHECKOUT / "requirements" / find_version("openrlhf") / "pins.txt"
    if others.is_file():
        own = map(_PIN.fullmatch, others.read_text(encoding="utf-8").splitlines())
        pinned |= {match[1]: match[2] for match in own if match and match[1] in pinned}
    return pinned


def facts(paths: Sequence[str]) -> dict[str, str | None]:
    """Return what this node has, by what a user calls it; None is missing. Ray runs it on each node of a cluster.

    Args:
        paths: of models, and of the user's own code.
    """
    found = importlib.util.find_spec("openrlhf")
    return {
        "Python": platform.python_version(),
        **{name: find_version(name) for name in pins()},
        "the patched OpenRLHF": patches.digest(Path(found.origin).parent) if found and found.origin else None,
        **{f"{name}/ of the checkout": digest(CHECKOUT / name, "*.py") for name in CODE},
        **{path: digest(Path(path)) for path in paths},
    }


def digest(path: Path, pattern: str = "*") -> str | None:
    """Return a digest of a file, or of a folder's files by name; None if it is missing. Of a large file, its size."""
    if not path.exists():
        return None
    total = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob(pattern))):
        size = file.stat().st_size
        content = str(size) if size > LARGE else hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(path)} {content}\n".encode())
    return total.hexdigest()[:12]


def compare(address: str, home: Facts, there: Facts) -> Iterator[Problem]:
    """Yield how the node at `address` differs from the launcher's, `home`."""
    for name, wanted in home.items():
        if (has := there.get(name)) != wanted:
            what = f"{name} is {has or 'missing'} on node {address}, but {wanted or 'missing'} on the launcher's node"
            yield Problem(what, _COPY if name.startswith("/") else SAME)
