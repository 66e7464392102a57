"""Shared by the benchmarks: timing several ways in turn, and the result they return."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Result:
    """What a benchmark measured.

    Attributes:
        what: what was measured, with its sizes; one line.
        unit: of `stock` and `ours`.
        higher_is_better: True for rates, False for times and sizes.
        details: further numbers by name, the unit at the end of the name.
        extrapolation: lines on gpt-oss-120b, with the assumptions.
    """

    what: str
    unit: str
    stock: float
    ours: float
    higher_is_better: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    extrapolation: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Return how many times ours is better. Raises ValueError if either is not a positive number."""
        for name in ("stock", "ours"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value} {self.unit}: nothing was measured")
        return self.ours / self.stock if self.higher_is_better else self.stock / self.ours


@dataclass(frozen=True)
class Timing:
    """Several calls of one way.

    Attributes:
        seconds: wall clock of the fastest.
        cores: processor time over wall clock of that call; less than the threads in use if other work took cores.
    """

    seconds: float
    cores: float


def time_in_turn(
    ways: Mapping[str, Callable[[], object]], repeat: int, device: torch.device | None = None
) -> dict[str, Timing]:
    """Call each of `ways` once per round, so that a busy spell of the machine affects all of them.

    One untimed round comes first. What a call returns is freed outside the timing. On an accelerator the clock stops
    when its work is done.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for timed_round in range(repeat + 1):
        for name, way in ways.items():
            timing = _time_once(way, device)
            if timed_round:
                times[name].append(timing)
    fastest = {name: min(several) for name, several in times.items()}
    return {name: Timing(seconds, busy / seconds) for name, (seconds, busy) in fastest.items()}


def _time_once(way: Callable[[], object], device: torch.device | None) -> tuple[float, float]:
    """Return wall clock and processor time of a call."""
    _synchronize(device)
    processor, wall = time.process_time(), time.perf_counter()
    result = way()
    _synchronize(device)
    times = time.perf_counter() - wall, time.process_time() - processor
    del result
    return times


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)
