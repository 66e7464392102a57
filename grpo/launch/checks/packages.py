"""Compares Python and the installed packages with the pins of the installed OpenRLHF."""

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator

from grpo.stack.checkout import CHECKOUT, is_cpu_stack
from grpo.stack.problem import Problem

_SHOWN = {
    "openrlhf": "OpenRLHF",
    "ray": "Ray",
    "vllm": "vLLM",
    "deepspeed": "DeepSpeed",
    "transformers": "transformers",
}


def check_packages() -> Iterator[Problem]:
    """Find a Python or a pinned package of another version."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        version = ".".join(map(str, sys.version_info[:2]))
        yield Problem(
            f"this is Python {version}, but the stack needs 3.11 or 3.12", "run scripts/setup.sh, which makes .venv"
        )
    for name, wanted in pins().items():
        if (found := find_version(name)) != wanted:
            yield Problem(f"{name} is {found}, but the pinned version is {wanted}", "run scripts/setup.sh")


def describe() -> str:
    """Return the line that names OpenRLHF and what it runs on."""
    found = {name.removesuffix("-cpu"): find_version(name) for name in pins()}
    return "software    " + ", ".join(f"{shown} {found[name]}" for name, shown in _SHOWN.items())


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
    stack = "cpu" if is_cpu_stack() else "gpu"
    pinned = _exact(project["dependencies"] + project["optional-dependencies"][stack])
    others = CHECKOUT / "requirements" / find_version("openrlhf") / "pins.txt"
    if others.is_file():
        own = _exact(others.read_text(encoding="utf-8").splitlines())
        pinned |= {name: version for name, version in own.items() if name in pinned}
    return pinned


def _exact(requirements: Iterable[str]) -> dict[str, str]:
    matches = (re.fullmatch(r"([\w.-]+)(?:\[.*\])?==([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in matches if match}
