"""How a Ray cluster of our own is started: its command, its folder, its ports."""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grpo.cluster import free_port

# A socket path holds at most 107 bytes (unix(7)); Ray adds
# "/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store", vLLM "/tmp/<uuid>", to our folder.
MAX_BASE_LENGTH = 107 - len("/ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.lock")


@dataclass(frozen=True)
class RayHead:
    """What the head node of a run offers. `object_store_bytes` is its part of /dev/shm."""

    num_gpus: int
    num_cpus: int
    object_store_bytes: int


def make_base_dir() -> Path:
    """Create the run's own folder for sockets and temporary files: short, private, deleted with the run."""
    parent = tempfile.gettempdir()
    if len(os.path.join(parent, "grpo-12345678")) > MAX_BASE_LENGTH:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="grpo-", dir=parent))


def address_file(base_dir: Path) -> Path:
    """Return the file in which `ray start` writes the address of the cluster once it is up."""
    return base_dir / "ray" / "ray_current_cluster"


def start_command(head: RayHead, base_dir: Path) -> list[str]:
    """Return the `ray start` command; it blocks. All ports are free ones: other clusters may run here."""
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        "--disable-usage-stats",
        "--include-dashboard=false",
        f"--temp-dir={base_dir / 'ray'}",
        f"--num-gpus={head.num_gpus}",
        f"--num-cpus={head.num_cpus}",
        f"--object-store-memory={head.object_store_bytes}",
        "--port=0",
        f"--ray-client-server-port={free_port()}",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
