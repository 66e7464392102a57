"""Seconds and peak memory of calls, and the comparison of two ways."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_CPU = torch.device("cpu")


def compare(
    what: str, unit: str, stock: float, ours: float, details: Mapping[str, Any], higher_is_better: bool = False
) -> dict[str, Any]:
    """Return what a benchmark measured, and `ratio`: how many times ours is better. Raises ValueError if nothing was.

    Args:
        what: was measured, with its sizes; one line.
        details: further numbers by name, the unit at the end of the name.
        higher_is_better: True for rates, False for times and sizes.
    """
    if not all(math.isfinite(value) and value > 0 for value in (stock, ours)):
        raise ValueError(f"stock is {stock} {unit}, ours {ours}: nothing was measured")
    ratio = ours / stock if higher_is_better else stock / ours
    return {
        "what": what, "unit": unit, "higher_is_better": higher_is_better, "stock": stock, "ours": ours,
        "ratio": ratio, "details": dict(details),
    }  # fmt: skip


def time_in_turn(
    ways: Mapping[str, Callable[[], object]], repeat: int, device: torch.device = _CPU
) -> dict[str, float]:
    """Return the seconds of the fastest call of each way, after an untimed one.

    They take turns, so that a busy spell of the machine affects all of them. What a call returns is freed untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat + 1):
        for name, way in ways.items():
            _synchronize(device)
            begin = time.perf_counter()
            result = way()
            _synchronize(device)
            seconds[name].append(time.perf_counter() - begin)
            del result
    return {name: min(several[1:]) for name, several in seconds.items()}


def measure_peak(function: Callable[[], object], device: torch.device) -> int:
    """Return the peak in bytes of the tensors that a call allocates. The first call warms up.

    On a CPU the profiler counts them: the process keeps freed memory, or gives it back, as malloc sees fit.
    """
    function()
    gc.collect()
    if device.type == "cpu":
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            function()
        assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
        events = profiler.profiler.kineto_results.events()
        changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
        return max(accumulate((change for _, change in changes), initial=0))
    _synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    _synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class Peak:
    """Peak memory of this process since the object was created, mapped files included."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the present value
        self._before = _status("VmRSS")

    def growth(self) -> int:
        """Return the bytes of the peak above the initial value.

        Freed memory that the process keeps serves it again without raising the peak: measure what is done once.
        """
        return _status("VmHWM") - self._before


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
