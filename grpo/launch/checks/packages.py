"""Compares the installed packages with the pins of the installed OpenRLHF."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator

from grpo.stack.checkout import CHECKOUT, is_cpu_stack
from grpo.stack.problem import Problem

_SHOWN = ("openrlhf", "ray", "vllm", "deepspeed", "transformers")
_PIN = re.compile(r"([\w.-]+)(?:\[.*\])?==([\w.]+)")


def check_packages() -> Iterator[Problem]:
    """Find a pinned package of another version."""
    for name, wanted in pins().items():
        if (found := find_version(name)) != wanted:
            yield Problem(f"{name} is {found}, but the pinned version is {wanted}", "run scripts/setup.sh")


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
