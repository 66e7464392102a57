"""Peak memory of a process (Linux: /proc), or of the tensors that a function allocates."""

import gc
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def read_resident() -> int:
    """Return the bytes that this process holds in memory now."""
    return _status("VmRSS")


class Peak:
    """Peak memory of this process since the object was created.

    Attributes:
        before: the bytes that it held then.
    """

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the present value
        self.before = read_resident()

    def growth(self) -> int:
        """Return the bytes of the peak above the initial value; mapped files count.

        Freed memory that the process keeps serves it again without raising the peak: measure what is done once.
        """
        return _status("VmHWM") - self.before


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
    torch.accelerator.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.accelerator.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def read_bytes() -> int:
    """Return the bytes that this process has read by system calls, not by mapped files."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    return int(text.partition("rchar: ")[2].split()[0])


def count_mapped_bytes(folder: Path) -> int:
    """Return the touched bytes of mapped files below `folder`: whole pages, and neighbors that the kernel adds."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if not line.split(maxsplit=1)[0].endswith(":"):  # a mapping's header: addresses, rights, ..., path
            inside = f" {folder}/" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{key}:")[2].split()[0]) * 1024
