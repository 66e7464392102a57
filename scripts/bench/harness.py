"""What benchmarks share: timing the ways of doing a thing in turn, and the result they return."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


class SizeError(ValueError):
    """A size on the command line with which nothing can be measured."""


@dataclass(frozen=True)
class Result:
    """What a benchmark measured.

    Attributes:
        what: what was measured, with its sizes; one line.
        unit: of `stock` and `ours`.
        higher_is_better: True for rates, False for times and sizes.
        details: further numbers by name, the unit at the end of the name.
        extrapolation: lines on gpt-oss-120b, with the assumptions.
        missed: what the numbers should have been, where they are not: printed last, and the exit code is 1.
    """

    what: str
    unit: str
    stock: float
    ours: float
    higher_is_better: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    extrapolation: tuple[str, ...] = ()
    missed: str = ""

    @property
    def ratio(self) -> float:
        """How many times ours is better. Raises ValueError if either is no positive number."""
        for name in ("stock", "ours"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value} {self.unit}: nothing was measured")
        return self.ours / self.stock if self.higher_is_better else self.stock / self.ours


@dataclass(frozen=True)
class Timing:
    """The fastest of several calls.

    Attributes:
        seconds: wall clock.
        cores: processor time over wall clock of that call; below the threads in use where other work took cores.
    """

    seconds: float
    cores: float


def time_in_turn(
    ways: Mapping[str, Callable[[], object]], repeat: int, device: torch.device | None = None
) -> dict[str, Timing]:
    """Call each of `ways` once per round, so that a busy spell of the machine meets all of them.

    One round more comes first and is not timed. What a call returns is freed outside the timing. On an accelerator
    the clock stops when its work is done.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in ways}
    for timed_round in range(repeat + 1):
        for name, way in ways.items():
            timing = _time_once(way, device)
            if timed_round:
                timings[name].append(timing)
    return {name: min(several, key=lambda timing: timing.seconds) for name, several in timings.items()}


def _time_once(way: Callable[[], object], device: torch.device | None) -> Timing:
    _synchronize(device)
    processor, wall = time.process_time(), time.perf_counter()
    result = way()
    _synchronize(device)
    seconds = time.perf_counter() - wall
    cores = (time.process_time() - processor) / seconds
    del result
    return Timing(seconds, cores)


def _synchronize(device: torch.device | None) -> None:
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)
