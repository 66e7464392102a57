"""Shared by the benchmarks: their sizes as options, timing several ways in turn, and the result they return."""

import argparse
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# The sizes that benchmarks take: what they mean, the least that measures something, and what divides them.
SIZES = {
    "copy_megabytes": ("size of the copy that measures memory", 1, 1),
    "ranks": ("processes", 1, 1),
    "engines": ("vLLM engines", 1, 1),
    "tensor_parallel": ("workers of each engine", 1, 1),
    "layers": ("layers of the model", 1, 1),
    "experts": ("experts of a layer, or of a tensor; gpt-oss-120b has 128", 1, 1),
    "hidden": ("hidden and inner size", 32, 32),
    "intermediate": ("inner size of an expert", 32, 32),
    "shrink": ("divides both sides of an expert, for tests", 1, 1),
    "vocabulary": ("rows of the vocabulary; gpt-oss has 201,088", 64, 1),
    "lora_rank": ("rank of the adapter", 1, 1),
    "expert_rank": ("rank of each expert's adapter; 0 for none", 0, 1),
    "tokens": ("tokens of a sequence", 8, 1),
    "stock_tokens": ("longest sequence for stock", 8, 1),
    "sequences": ("sequences that an engine decodes at once; 0 for no engine", 0, 1),
    "repeat": ("timed rounds; the best counts", 1, 1),
}


def add_sizes(parser: argparse.ArgumentParser, defaults: Mapping[str, int | list[int]]) -> None:
    """Add an option for each of these sizes; one whose default is a list takes several values."""
    for name, default in defaults.items():
        meaning, least, divisor = SIZES[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=functools.partial(_size, least, divisor),
            default=default,
            nargs="+" if isinstance(default, list) else None,
            metavar="N",
            help=f"{meaning} (default: %(default)s)",
        )


def _size(least: int, divisor: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least or int(text) % divisor:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of {divisor}, and at least {least}")
    return int(text)


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
    details: Mapping[str, Any] = field(default_factory=dict)
    extrapolation: tuple[str, ...] = ()
    higher_is_better: bool = False

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
