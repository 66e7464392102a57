"""What a reward function may return, as one form: the check before a run and the run itself read it here.

A function gets n samples and returns one of these:
- OpenRLHF's dictionary: `rewards`, and if wanted `scores` and `extra_logs`, a dictionary of numbers by name.
- n numbers: a list, a tuple, a tensor or an array.
- one number, if n is 1.
"""

from dataclasses import dataclass
from math import nan
from numbers import Real
from typing import Any

ACCEPTED = 'return a number, a list of numbers, or {"rewards": ..., "scores": ..., "extra_logs": {...}}'
_KEYS = {"rewards", "scores", "extra_logs"}


class ReturnError(TypeError):
    """A returned value that is no reward. The message says what it is."""


@dataclass(frozen=True)
class Returned:
    """The rewards of n rollouts, NaN for a rollout without one; `scores` are the rewards unless they are given."""

    rewards: list[float]
    scores: list[float]
    logs: list[dict[str, float]]


def read(value: Any, count: int) -> Returned:
    """Return what a reward function returned for `count` samples in one form.

    Raises:
        ReturnError: if it has another form, or not one number per rollout.
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
        return nan
    if not isinstance(value, Real):
        text = repr(value)
        raise ReturnError(f"{before} {text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}")
    return float(value)
