"""What must be equal on every node of a cluster: :func:`facts` runs there as a task of Ray, before anything loads."""

import hashlib
import importlib.util
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import patches
from grpo.launch.checks import packages
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import Problem

CODE = ("grpo", "reward", "patches", "eval", "data")
SAME = "install the same checkout in the same folder there: git pull, ./scripts/setup.sh, ./apply_patches.sh"
COPY = "copy it there under the same path, or keep it in a folder that all nodes share"
LARGE = 100_000_000  # bytes; a model's weights would take minutes to read

Facts = Mapping[str, str | None]


def facts(paths: Sequence[str]) -> dict[str, str | None]:
    """Return what this node has, by what a user calls it; None is missing.

    Args:
        paths: of models, and of the user's own code.
    """
    found = importlib.util.find_spec("openrlhf")
    return {
        "Python": platform.python_version(),
        **{name: packages.find_version(name) for name in packages.pins()},
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
            yield Problem(what, COPY if name.startswith("/") else SAME)
