"""Rungs about the machine: driver, compilers, NCCL, copies from and to the host, NUMA, memory to pin."""

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

from grpo.stack import machine
from grpo.stack import numa as numa_nodes
from grpo.stack.problem import UserError
from scripts.gpu_check.rung import Passed, Skipped, choose_device

_OFFLOADED_120B = 66  # GB that OFFLOAD=1 pins for gpt-oss-120b with packed experts
_SLOW = 5.0  # GB/s: below it a link is broken, or is PCIe with a few lanes


def driver(gpus: int) -> Passed:
    """Compare what the driver lists with what PyTorch can use, and compute something on each GPU."""
    version, listed = machine.find_driver(), machine.gpus()
    if not gpus and not listed and version is None:
        raise Skipped(f"no NVIDIA GPU: neither NVML ({machine.find_gpu_fault()}) nor PyTorch finds one")
    import torch

    if not gpus:
        raise UserError(
            f"driver {version} lists {len(listed)} GPUs, and PyTorch {torch.__version__} can use none",
            f"it was built for CUDA {torch.version.cuda}: install a driver for that, or ./scripts/setup.sh --gpu",
        )
    for index in range(gpus):
        values = torch.arange(1024, device=f"cuda:{index}", dtype=torch.float32)
        if (total := float(values.sum())) != 1023 * 512:
            raise UserError(
                f"GPU {index} sums 0 to 1023 to {total}", "the GPU is broken: look at nvidia-smi -q and dmesg"
            )
    used = [f"{gpu.used / 1e9:.1f} GB of {gpu.name}" for gpu in listed if gpu.used > 2 * machine.GB]
    return Passed(
        f"{gpus} GPUs compute; driver {version or 'unknown (no NVML)'}, CUDA {torch.version.cuda} in PyTorch"
        + (f"; in use by others: {', '.join(used)}" if used else ""),
        {"gpus": gpus},
    )


def toolkit(gpus: int) -> Passed:
    """Compile against Python's headers, as Triton does at its first kernel."""
    del gpus
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), None)
    if compiler is None:
        raise UserError("no C compiler: Triton compiles its kernels' entry points with one")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n", encoding="ascii")
        command = [compiler, f"-I{sysconfig.get_paths()['include']}", "-shared", "-fPIC", "-o", f"{folder}/probe.so"]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=60)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise UserError(f"{compiler} cannot compile against Python's headers: {first}")
    return Passed(f"{compiler} compiles", {"compiler": compiler})


def all_reduce(gpus: int, megabytes: int = 1024) -> Passed:
    """Sum and gather over all GPUs at once, and say how they are connected."""
    from benchmarks.parts.ranks import run_ranks

    device, ranks = choose_device(gpus), gpus or 2
    job = {"device": device, "megabytes": megabytes}
    reports = run_ranks("scripts.gpu_check.collective_worker", ranks, job, own_gpu=gpus > 0)
    if wrong := [rank for rank, report in enumerate(reports) if not report["right"]]:
        raise UserError(f"ranks {wrong} received wrong sums or parts")
    reduce, gather = (min(report[name] for report in reports) for name in ("all_reduce", "all_gather"))
    link = links(gpus)
    if gpus and min(reduce, gather) < _SLOW:
        raise UserError(f"all-reduce {reduce:.1f}, all-gather {gather:.1f} GB/s per GPU over {link}: far too slow")
    return Passed(
        f"{ranks} ranks over {link}: all-reduce {reduce:.0f}, all-gather {gather:.0f} GB/s per GPU",
        {"all_reduce_gb_per_s": reduce, "all_gather_gb_per_s": gather, "link": link, "ranks": ranks},
    )


def links(gpus: int) -> str:
    """Return how the GPUs are connected, as nvidia-smi's matrix says: "NVLink", "PCIe", both, or "unknown"."""
    if not shutil.which("nvidia-smi"):
        return "unknown"
    printed = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60).stdout
    return parse_links(printed, gpus)


def parse_links(matrix: str, gpus: int) -> str:
    """Read the matrix of `nvidia-smi topo -m`: NV18 is NVLink; PIX, PXB, PHB, NODE and SYS are PCIe."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", matrix)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    cells = {cell for row in rows for cell in row[1 : 1 + max(gpus, len(rows))] if cell != "X"}
    kinds = [
        name
        for name, pattern in (("NVLink", r"NV\d+"), ("PCIe", r"PIX|PXB|PHB|NODE|SYS"))
        if any(re.fullmatch(pattern, cell) for cell in cells)
    ]
    return " and ".join(kinds) or "unknown"


def host_copies(gpus: int, megabytes: int = 1024) -> Passed:
    """Copy pinned memory to each GPU and back."""
    import torch

    from benchmarks.harness import time_in_turn

    devices = [torch.device("cuda", index) for index in range(gpus)] or [torch.device("cpu")]
    host = torch.ones(megabytes << 20, dtype=torch.uint8, pin_memory=gpus > 0)
    rates: dict[str, list[float]] = {"to": [], "from": []}
    for index, target in enumerate(devices):
        there = torch.zeros_like(host, device=target)
        ways = {"to": lambda there=there: there.copy_(host), "from": lambda there=there: host.copy_(there)}
        for name, timing in time_in_turn(ways, 3, target).items():
            rates[name].append(host.nbytes / timing.seconds / 1e9)
        if not bool((there == 1).all()):
            raise UserError(f"GPU {index} received other bytes than were sent", "the GPU or its slot is broken")
    slowest = min(rates["to"])
    if gpus and slowest < _SLOW:
        raise UserError(f"GPU {rates['to'].index(slowest)} gets {slowest:.1f} GB/s of pinned memory: far too slow")
    return Passed(
        f"pinned memory: {slowest:.1f} to {max(rates['to']):.1f} GB/s to a GPU, {min(rates['from']):.1f} GB/s back",
        {
            "to_device_gb_per_s": slowest,
            "from_device_gb_per_s": min(rates["from"]),
            "of_each_gpu_gb_per_s": [round(rate, 1) for rate in rates["to"]],
        },
    )


def numa(gpus: int) -> Passed:
    """Say which GPUs are next to which NUMA node, and how many of its cores this process may use."""
    del gpus
    listed = machine.gpus()
    if not listed:
        raise Skipped("NVML, which tells where GPUs are, lists none")
    groups: dict[int | None, list[str]] = {}
    for gpu in listed:
        groups.setdefault(numa_nodes.find_node(gpu), []).append(str(gpu.index))
    parts = []
    for node, indices in groups.items():
        of_node = (
            f"node {node} ({_usable(node)} usable cores)" if node is not None else "an unknown node, or the only one"
        )
        parts.append(f"GPUs {', '.join(indices)} beside {of_node}")
    return Passed("; ".join(parts), {"gpus_of_nodes": {str(node): indices for node, indices in groups.items()}})


def _usable(node: int) -> int:
    """Return how many cores of a node this process may use; ranks are bound to them."""
    cores = len(numa_nodes.list_cores(node) & os.sched_getaffinity(0))
    if not cores:
        raise UserError(f"this process may use no core of NUMA node {node}", "give the container cores of each node")
    return cores


def pin_memory(gpus: int, gigabytes: float = 8.0) -> Passed:
    """Pin some memory in blocks of 1 GiB, as ZeRO-3's offload does."""
    import torch

    available = machine.memory_available() / machine.GB
    if available < 2 * gigabytes:
        raise UserError(
            f"{available:.0f} GB of host memory are available", "free memory, or raise the container's limit"
        )
    begin = time.perf_counter()
    block = min(2**30, int(gigabytes * 2**30))
    blocks = [torch.empty(block, dtype=torch.uint8, pin_memory=gpus > 0) for _ in range(max(1, round(gigabytes)))]
    seconds = time.perf_counter() - begin
    size = sum(one.nbytes for one in blocks) / 1e9
    offload = "enough" if available > _OFFLOADED_120B + 10 else "not enough"
    return Passed(
        f"pinned {size:.1f} GB in {seconds:.1f} s; {available:.0f} GB available, {offload} for OFFLOAD=1, which pins "
        f"{_OFFLOADED_120B} GB for the 120b",
        {"available_gb": available, "pinning_gb_per_s": size / seconds},
    )
