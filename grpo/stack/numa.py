"""Cores and memory next to a GPU: on a machine with two processors, half of each is behind the link between them.

A process is bound to cores alone. Linux takes a new page from the memory beside the core that first writes to it.
"""

import contextlib
import os
from pathlib import Path

from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.machine import Gpu

SYSFS = Path("/sys")


def find_node(gpu: Gpu) -> int | None:
    """Return the NUMA node of a GPU; None if the machine has one node, or hides it."""
    # NVML gives eight digits of the PCI domain, Linux names four.
    try:
        node = int((SYSFS / "bus/pci/devices" / gpu.bus.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def list_cores(node: int) -> set[int]:
    """Return the cores of a NUMA node."""
    text = (SYSFS / "devices/system/node" / f"node{node}" / "cpulist").read_text().strip()
    ranges = [part.partition("-") for part in text.split(",") if part]
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def bind_to_gpu() -> str:
    """Bind this process, with all its threads, to the cores next to the GPU that it uses.

    Returns:
        what was done, in a line for the log; "" on the CPU stack.
    """
    gpus = [] if is_cpu_stack() else machine.gpus()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= len(gpus):
        return ""
    gpu, allowed = gpus[local], os.sched_getaffinity(0)
    node = find_node(gpu)
    if node is None:
        return f"GPU {gpu.index}: its NUMA node is unknown; not bound to cores"
    cores = list_cores(node) & allowed
    if not cores:
        return f"GPU {gpu.index}: this process may use no core of its NUMA node {node}; not bound to cores"
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)
    return f"GPU {gpu.index}: bound to {len(cores)} cores of NUMA node {node}"
