"""This machine's hardware: GPUs, memory, disk. Read from the system, without torch."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SHM = Path("/dev/shm")
GB = 1e9


_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Gpu:
    """One visible GPU; memory in bytes, and CUDA's compute capability ("9.0")."""

    name: str
    memory: int
    used: int
    capability: str


def gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows; [] without a driver."""
    query = [
        "nvidia-smi",
        "--query-gpu=index,uuid,name,memory.total,memory.used,compute_cap",
        "--format=csv,noheader,nounits",
    ]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (FileNotFoundError, subprocess.SubprocessError):
        return []
    return visible(parse_gpus(output), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(output: str) -> dict[tuple[str, str], Gpu]:
    """Return the rows that nvidia-smi printed, by index and UUID."""
    rows = {}
    for line in output.strip().splitlines():
        index, uuid, name, total, used, capability = (field.strip() for field in line.split(","))
        rows[index, uuid] = Gpu(name, int(total) * 2**20, int(used) * 2**20, capability)
    return rows


def visible(rows: dict[tuple[str, str], Gpu], devices: str | None) -> list[Gpu]:
    """Return the GPUs that this CUDA_VISIBLE_DEVICES value allows; None allows all."""
    if devices is None:
        return list(rows.values())
    names = [name.strip() for name in devices.split(",") if name.strip()]
    return [gpu for (index, uuid), gpu in rows.items() if any(n == index or uuid.startswith(n) for n in names)]


def memory_total() -> int:
    """Return the bytes of memory that a run may use: the machine's, or its control group's if less."""
    return min([_meminfo("MemTotal"), *_cgroup_limits()])


def memory_available() -> int:
    """Return the bytes of available memory, including page cache."""
    free = _meminfo("MemAvailable")
    for limit, used in zip(_cgroup_limits(), _cgroup_used(), strict=False):
        free = min(free, limit - used)
    return free


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")


def _cgroup_limits() -> list[int]:
    value = _read_number(_CGROUP / "memory.max")
    return [] if value is None else [value]


def _cgroup_used() -> list[int]:
    used = _read_number(_CGROUP / "memory.current")
    if used is None:
        return []
    # A control group counts page cache as used although it can be reclaimed.
    cache = 0
    for line in (_CGROUP / "memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            cache = int(line.split()[1])
    return [used - cache]


def _read_number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


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
