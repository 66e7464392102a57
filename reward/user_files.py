"""Reward functions of the user's own: which files they are in, their weights, and how they are loaded.

`train_grpo.sh` passes REWARD and --reward_weights to every worker as the variables GRPO_REWARD_FILES and
GRPO_REWARD_WEIGHTS.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from reward.settings import SettingsError

VARIABLES = ("REWARD_FILES", "REWARD_WEIGHTS")
FUNCTION = "reward_func"
_CHECKOUT = Path(__file__).resolve().parents[1]
# Files may import from our packages grpo and reward, which come first.
_OURS = ("benchmarks", "data", "eval", "patches", "scripts", "tests")


class NoFunctionError(AttributeError):
    """A file without the function."""


@dataclass(frozen=True)
class RewardFile:
    """One file of REWARD. Its name, the stem of the file, names its metric."""

    path: Path
    weight: float

    @property
    def name(self) -> str:
        return self.path.stem


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that make the settings, without their prefix, as they are in the environment."""
    return {name: environ[f"GRPO_{name}"] for name in VARIABLES if environ.get(f"GRPO_{name}")}


def digests(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the sha256 of each file that exists, by its path."""
    paths = [file.path for file in from_environment(environ) if file.path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def from_environment(environ: Mapping[str, str] = os.environ) -> list[RewardFile]:
    """Return the files with their weights, [] if the reward is this project's.

    Raises:
        SettingsError: for two files of one name, or weights that do not match the files.
    """
    values = variables(environ)
    paths = [Path(path) for path in values.get("REWARD_FILES", "").split(os.pathsep) if path]
    by_name: dict[str, Path] = {}
    for path in paths:
        other = by_name.setdefault(path.stem, path)
        if other is not path:
            raise SettingsError(
                f"REWARD names {other} and {path}, whose metrics would both be reward.{path.stem}", "rename one of them"
            )
    weights = values.get("REWARD_WEIGHTS", "").split() or ["1"] * len(paths)
    if len(weights) != len(paths):
        raise SettingsError(
            f"--reward_weights has {len(weights)} weights, but REWARD names {len(paths)} files",
            "give one weight per file",
        )
    return [RewardFile(path, _weight(weight)) for path, weight in zip(paths, weights, strict=True)]


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise SettingsError(f"--reward_weights has {text!r}", "give numbers, for example '1 0.5'")
    return weight


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Look for modules in a folder first, even if they have the name of a package of ours. Afterwards it comes last."""
    files = {name: (folder / f"{name}.py", folder / name / "__init__.py") for name in _OURS}
    hidden = {name for name, places in files.items() if folder != _CHECKOUT and any(map(Path.is_file, places))}
    ours = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in hidden}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
            del sys.modules[name]
        sys.modules.update(ours)


def run_file(path: Path, name: str) -> ModuleType:
    """Return the module of a file. What it imports is looked for in the file's own folder first.

    Raises:
        Exception: whatever importing the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    folder = path.absolute().parent
    with contextlib.nullcontext() if folder.is_relative_to(_CHECKOUT / "grpo") else _first_on_path(folder):
        spec.loader.exec_module(module)
    return module


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a file each time. Python takes its .pyc for current if the file has kept its second and its size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load(path: Path) -> Callable[..., Any]:
    """Return the function of a file, see :func:`run_file`.

    Raises:
        NoFunctionError: if the file does not define it.
        Exception: whatever importing the file raises.
    """
    module = run_file(path, f"reward_of_{path.stem}")
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise NoFunctionError(f"{path} has no function {FUNCTION}")
    return function
