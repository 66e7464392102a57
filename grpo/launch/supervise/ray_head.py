"""How our own Ray cluster is started: its command, its address, its token.

Whoever can submit a job to Ray runs code as this user. So the cluster listens on loopback alone and requires the run's
token, which other local users do not have.
"""

import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REGISTRATION_SECONDS = 120.0
NOTICE_SECONDS = 3.0  # until Ray ends after one of its processes


@dataclass(frozen=True)
class RayHead:
    """The resources of a run's head node. `object_store_bytes` is its part of /dev/shm."""

    num_gpus: int
    num_cpus: int
    object_store_bytes: int


def address_file(base_dir: Path) -> Path:
    """Return the file in which `ray start` writes the address of the cluster once it is up."""
    return base_dir / "ray" / "ray_current_cluster"


def link_logs(base_dir: Path, kept: Path) -> None:
    """Make a link to Ray's logs, for as long as it runs. The logs of an earlier part of the run get another name."""
    if kept.is_dir() and not kept.is_symlink():
        number = sum(1 for _ in kept.parent.glob(f"{kept.name}.*"))
        kept.rename(kept.with_name(f"{kept.name}.{number + 1}"))
    kept.unlink(missing_ok=True)
    kept.symlink_to(_logs(base_dir))


def keep_logs(base_dir: Path, kept: Path) -> None:
    """Replace the link by a copy."""
    kept.unlink(missing_ok=True)
    try:
        shutil.copytree(_logs(base_dir), kept)
        for path in (kept, *kept.rglob("*")):  # Ray makes its folders writable for everyone
            path.chmod(path.stat().st_mode & 0o700)
    except OSError as error:
        print(f"Ray's logs could not be copied to {kept}: {error}", file=sys.stderr)


def _logs(base_dir: Path) -> Path:
    return base_dir / "ray" / "session_latest" / "logs"


def variables() -> dict[str, str]:
    """Return the environment variables of a new cluster, for Ray itself and for every driver.

    Only the environment carries them, which other users cannot read: the token is in no command line.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # If it may have no second node, Ray listens on loopback alone. That is its default on Windows and macOS.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Workers that Ray starts before anybody asks have no job's variables, so no actor of ours can use them.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }


def explain_silence(address: str) -> str:
    """Return why nothing answers at HOST:PORT; "" if something does."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def start_command(head: RayHead, base_dir: Path) -> list[str]:
    """Return the command that starts Ray; it blocks. All ports are chosen free: other clusters may run here."""
    return [
        *(sys.executable, "-m", "grpo.launch.supervise.ray_head", "start", "--head", "--block"),
        "--disable-usage-stats",
        "--include-dashboard=false",
        "--no-monitor",  # the autoscaler's
        f"--temp-dir={base_dir / 'ray'}",
        f"--num-gpus={head.num_gpus}",
        f"--num-cpus={head.num_cpus}",
        f"--object-store-memory={head.object_store_bytes}",
        "--port=0",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]


def main() -> None:
    """Act as the `ray` command, with two changes that `ray start` has no option for.

    - It starts no client server, which nothing here uses. Ray starts one if the packages for it are installed.
    - It waits REGISTRATION_SECONDS for the raylet instead of 30. Ray's agents must be imported first. That takes longer
      on a busy machine, or if `.venv` is on a network disk that has not been read yet.
    """
    from ray._private import services
    from ray.scripts import scripts

    scripts.get_ray_client_dependency_error = lambda: ImportError("not wanted")
    services.get_node = _add_retries(services.get_node)
    scripts.main()


def _add_retries(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `get_node` that retries until the node exists."""

    def wait(*arguments: Any) -> Any:
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    return wait


if __name__ == "__main__":
    main()
