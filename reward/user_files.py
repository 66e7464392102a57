"""Reward functions of the user's own: their files and weights, how they are loaded, and what they may return.

`train_grpo.sh` passes REWARD and --reward_weights to every worker as the variables GRPO_REWARD_FILES and
GRPO_REWARD_WEIGHTS.
"""

import errno
import hashlib
import importlib.machinery
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from reward import beside
from reward.settings import SettingsError

VARIABLES = ("REWARD_FILES", "REWARD_WEIGHTS")
FUNCTION = "reward_func"
ACCEPTED = 'return a number, a list of numbers, or {"rewards": ..., "scores": ..., "extra_logs": {...}}'
_KEYS = {"rewards", "scores", "extra_logs"}
_LARGEST = 2**26  # bytes of a file
_GRPO = Path(__file__).resolve().parents[1] / "grpo"


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
    return {str(path): hashlib.sha256(_read(path)).hexdigest() for path in paths}


def _read(path: Path) -> bytes:
    """Return the content of a file of code. Raises OSError for one that is too large."""
    if path.stat().st_size > _LARGEST:
        raise OSError(errno.EFBIG, f"larger than {_LARGEST:,} bytes", str(path))
    return path.read_bytes()


def from_environment(environ: Mapping[str, str] = os.environ) -> list[RewardFile]:
    """Return the files with their weights, [] if the reward is this project's.

    Raises SettingsError for two files of one name, or weights that do not match the files.
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


def run_file(path: Path, name: str) -> ModuleType:
    """Return the module of a file. What it imports is looked for in its own folder first. Raises what it does."""
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    if not (folder := path.absolute().parent).is_relative_to(_GRPO):
        beside.add(folder)
    spec.loader.exec_module(module)
    return module


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a file each time. Python takes its .pyc for current if the file has kept its second and its size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(_read(Path(self.path)), self.path)


def load(path: Path) -> Callable[..., Any]:
    """Return the function of a file, see :func:`run_file`. Raises NoFunctionError without one, or what it does."""
    module = run_file(path, f"reward_of_{path.stem}")
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise NoFunctionError(f"{path} has no function {FUNCTION}")
    return function


class ReturnError(TypeError):
    """A returned value that is no reward. The message says what it is."""


@dataclass(frozen=True)
class Returned:
    """The rewards of n rollouts, NaN for a rollout without one; `scores` are the rewards unless they are given."""

    rewards: list[float]
    scores: list[float]
    logs: list[dict[str, float]]


def read(value: Any, count: int) -> Returned:
    """Return what a reward function returned for `count` samples in one form. The check before a run reads it here too.

    It may be OpenRLHF's dictionary, with `rewards`, and if wanted `scores` and `extra_logs`, numbers by name; or
    `count` numbers: a list, a tuple, a tensor or an array; or one number, if `count` is 1.
    Raises ReturnError if it has another form, or not one number per rollout.
    """
    if not isinstance(value, dict):
        rewards = _numbers(value, count, "the return value")
        return Returned(rewards, rewards, [{} for _ in rewards])
    if unknown := [str(key) for key in value if key not in _KEYS]:
        raise ReturnError(f"the returned dictionary has the key {unknown[0]!r}")
    if "rewards" not in value:
        raise ReturnError("the returned dictionary has no 'rewards'")
    rewards = _numbers(value["rewards"], count, "'rewards'")
    scores = value.get("scores")
    extra = value.get("extra_logs") or {}
    if not isinstance(extra, dict):
        raise ReturnError(f"'extra_logs' is of type {type(extra).__name__}, not a dictionary")
    logs = {str(name): _numbers(numbers, count, f"the log {str(name)!r}") for name, numbers in extra.items()}
    return Returned(
        rewards,
        rewards if scores is None else _numbers(scores, count, "'scores'"),
        [{name: numbers[sample] for name, numbers in logs.items()} for sample in range(count)],
    )


def _numbers(value: Any, count: int, name: str) -> list[float]:
    value = _convert_to_numbers(value)
    if isinstance(value, list | tuple):
        if len(value) != count:
            raise ReturnError(
                f"{name} has {len(value)} values for {count} rollout{'s' * (count != 1)}, and needs one each"
            )
        return [_number(_convert_to_numbers(item), f"{name} has") for item in value]
    if value is None:
        raise ReturnError(f"{name} is None")
    number = _number(value, f"{name} is")
    if count != 1:
        raise ReturnError(f"{name} is one number for {count} rollouts")
    return [number]


def _convert_to_numbers(value: Any) -> Any:
    """Return a tensor or an array as numbers; anything else unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any, before: str) -> float:
    """Return a number; None is NaN, which marks a rollout without one."""
    if value is None:
        return math.nan
    if not isinstance(value, Real):
        text = repr(value)
        raise ReturnError(f"{before} {text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}")
    return float(value)
