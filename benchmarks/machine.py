"""The machine of a benchmark: cores, load, and how fast it copies memory."""

import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import time_in_turn


class Copy:
    """`Tensor.copy_` between two large bf16 tensors: the yardstick for everything that moves memory.

    Args:
        megabytes: of each tensor; well above the caches.
        device: of both.

    Both tensors were written to before. Bytes read and bytes written both count. On a CPU the better of one thread and
    all threads counts. If one core saturates the memory, or another process holds a core, all threads are slower.
    """

    def __init__(self, megabytes: int, device: torch.device) -> None:
        self.device = device
        self._source = torch.ones(megabytes * 500_000, dtype=torch.bfloat16, device=device)
        self._target = torch.zeros_like(self._source)
        self.best = 0.0

    def measure(self, rounds: int = 3) -> float:
        """Return GB/s of these rounds; `best` keeps the best of all calls."""
        threads = torch.get_num_threads()
        several = {1, threads} if self.device.type == "cpu" else {threads}
        try:
            for number in several:
                torch.set_num_threads(number)
                timing = time_in_turn({"copy": lambda: self._target.copy_(self._source)}, rounds, self.device)["copy"]
                self.best = max(self.best, 2 * self._source.nbytes / timing.seconds / 1e9)
        finally:
            torch.set_num_threads(threads)
        return self.best


def facts(copy: Copy) -> dict[str, Any]:
    """Return what results on this machine depend on. A `load` well above `threads` means that other work ran, too."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "device": str(copy.device),
        "copy_gb_per_s": round(copy.best, 2),
        "torch": torch.__version__,
    }


def _processor() -> str:
    names = [
        line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "name" in line
    ]
    return names[0] if names else "unknown"
