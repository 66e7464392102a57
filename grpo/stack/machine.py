"""This machine's hardware: GPUs and the cores next to them, memory, disk. Read from the system, without torch."""

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml

from grpo.stack.checkout import is_cpu_stack
from grpo.stack.command import format_count
from grpo.stack.problem import UserError

SHM, SYSFS = Path("/dev/shm"), Path("/sys")
GB = 1e9
_CGROUP, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of a control group of version 2 and 1: its limit, what it uses, and the page cache in it that can be reclaimed.
_GROUP_V2 = ("memory.max", "memory.current", "inactive_file")
_GROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# Where vLLM's kernels compute experts as the model's files hold them. It takes Triton's for 9.0 and 10.0, and those for
# 10.0 do not compile in this layout. Elsewhere it takes Marlin's, which rearrange the experts.
SHARES_MODEL = "9.0"
# GPU models by compute capability; docs/boxes.md says what each serves.
MODELS = {"8.0": "A100", "8.9": "L40S, RTX 4090", "9.0": "H100, H200", "10.0": "B200"}


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes, and CUDA's compute capability ("9.0"). The last three are NVML's names of it."""

    name: str
    memory: int
    used: int
    capability: str
    index: int = 0
    uuid: str = ""
    bus: str = ""


def gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, in its order; [] without a driver."""
    return select_visible(all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def known_gpus() -> list[Gpu]:
    """Return the GPUs that a run can get here; [] on the CPU stack, and for a cluster, which has others."""
    return [] if is_cpu_stack() or os.environ.get("RAY_ADDRESS") else gpus()


def name_models(*capabilities: str) -> str:
    """Return these compute capabilities with the GPU models that have them."""
    return " or ".join(f"{capability} ({MODELS[capability]})" for capability in capabilities)


def find_gpu_that_cannot_share() -> Gpu | None:
    """Return a GPU on which an actor cannot map the model of an engine; None if none is known."""
    return next((gpu for gpu in known_gpus() if gpu.capability != SHARES_MODEL), None)


def all_gpus() -> list[Gpu]:
    """Return the GPUs of this machine in the order of the PCI bus; [] without a driver."""
    return _ask_nvml()[0]


def find_gpu_fault() -> str:
    """Return why NVIDIA's driver lists no GPU, or not all, in its own words; "" if it lists all."""
    return _ask_nvml()[1]


def find_driver() -> str | None:
    """Return the version of NVIDIA's driver; None without one."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def _ask_nvml() -> tuple[list[Gpu], str]:
    """Return the GPUs that answer, and what is wrong with the driver or with others."""
    found, faults = [], []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return [], str(error)
    for index in range(count):
        try:
            found.append(_describe_gpu(index))
        except pynvml.NVMLError as error:
            faults.append(f"GPU {index}: {error}")
    return found, "; ".join(faults) or ("" if found else "No GPU")


def _describe_gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(
        handle, version=pynvml.nvmlMemory_v2
    )  # the first counts the driver's as used
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return Gpu(name, memory.total, memory.used, f"{major}.{minor}", index, uuid, bus)


def select_visible(present: list[Gpu], devices: str | None) -> list[Gpu]:
    """Return the GPUs that this CUDA_VISIBLE_DEVICES value names, in its order; None names all."""
    if devices is None:
        return present
    return [gpu for name in _names(devices) if (gpu := _find_gpu(present, name))]


def number_gpus() -> None:
    """Make CUDA_VISIBLE_DEVICES name GPUs by nvidia-smi's indices, for this process and those that it starts.

    vLLM turns every entry into a number. A UUID would stop its workers, after everything else has started.
    Raises UserError if an entry names no GPU, several, one that an earlier entry named, or a part of one (MIG).
    """
    if is_cpu_stack() or os.environ.get("RAY_ADDRESS") or not (present := all_gpus()):
        return
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # otherwise CUDA numbers the fastest GPU first
    names, chosen = _names(os.environ.get("CUDA_VISIBLE_DEVICES", "")), list[str]()
    for name in names:
        gpu = _find_gpu(present, name)
        if name.startswith("MIG-"):
            raise UserError(
                f"CUDA_VISIBLE_DEVICES names {name}, a part of a GPU",
                "name whole GPUs by index or UUID, as nvidia-smi -L lists them; nvidia-smi -mig 0 ends the partition",
            )
        if gpu is None or str(gpu.index) in chosen:
            wrong = "not one GPU of this machine" if gpu is None else "a GPU that is already in the list"
            raise UserError(
                f"CUDA_VISIBLE_DEVICES names {name}, {wrong}",
                "name each GPU once, by index or UUID, as nvidia-smi -L lists them",
            )
        chosen.append(str(gpu.index))
    if chosen != names:
        os.environ.update(CUDA_VISIBLE_DEVICES=",".join(chosen), CUDA_DEVICE_ORDER="PCI_BUS_ID")


def _names(devices: str) -> list[str]:
    return [name.strip() for name in devices.split(",") if name.strip()]


def _find_gpu(present: list[Gpu], name: str) -> Gpu | None:
    """Return the only GPU with this index, or with a UUID that begins so; None if there is none or several."""
    found = [gpu for gpu in present if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))]
    return found[0] if len(found) == 1 else None


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

    On a machine with two processors, half of the cores and of the memory is behind the link between them. A process is
    bound to cores alone: Linux takes a new page from the memory beside the core that first writes to it.

    Returns:
        what was done, in a line for the log; "" on the CPU stack.
    """
    own = [] if is_cpu_stack() else gpus()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= len(own):
        return ""
    gpu, allowed = own[local], os.sched_getaffinity(0)
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


def stand_ins(count: int) -> str:
    """Return what a run on the CPU stack has in place of GPUs, for people."""
    cores = len(os.sched_getaffinity(0))
    return f"{format_count(count, 'stand-in')} for GPUs on {format_count(cores, 'core')}"


def memory_total() -> int:
    """Return the bytes of memory that a run may use: the machine's, or a control group's if less."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _read_groups())])


def memory_available() -> int:
    """Return the bytes of available memory, including page cache."""
    return min([psutil.virtual_memory().available, *(free for _, free in _read_groups())])


def _read_groups() -> Iterator[tuple[int, int]]:
    """Yield the limit and the free bytes of each control group that limits this process: its own, and those above.

    In a container, the path of a group may be the host's, of which only the last folder is here, as the root.
    """
    lines = _OWN_GROUPS.read_text().splitlines() if _OWN_GROUPS.exists() else []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, files = (_CGROUP / "memory", _GROUP_V1) if controllers else (_CGROUP, _GROUP_V2)
        for group in (own := Path(name.lstrip("/")), *own.parents):
            limit, used = (_read_number(root / group / file) for file in files[:2])
            if limit is not None and used is not None:
                parts = dict(line.split() for line in (root / group / "memory.stat").read_text().splitlines())
                yield limit, limit - used + int(parts.get(files[2], 0))


def _read_number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def raise_open_files() -> None:
    """Let this process, and those that it starts, have as many open files as the administrator allows.

    Any user of the machine can connect to a port on loopback, and each connection takes a file of the process there.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shared_memory_free() -> int:
    """Return the free bytes of /dev/shm, where Ray keeps its objects; 0 if it is missing."""
    return shutil.disk_usage(SHM).free if SHM.is_dir() else 0


def disk_free(path: Path) -> int:
    """Return the free bytes of the disk on which `path` is or will be."""
    return shutil.disk_usage(existing_parent(path)).free


def existing_parent(path: Path) -> Path:
    """Return `path` or the nearest folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def describe() -> dict[str, object]:
    """Return the hardware in the format of env.json; sizes in GB."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {
        "cpu": model.partition(":")[2].strip(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_total() / GB, 1),
        "gpus": [{"name": gpu.name, "memory_gb": round(gpu.memory / GB, 1)} for gpu in gpus()],
    }
