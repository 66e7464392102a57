"""How our own Ray cluster is started: its command, its address, its token, its logs.

Whoever can submit a job to Ray runs code as this user. So the cluster listens on loopback alone and requires the run's
token, which other local users do not have. As a program, this is the `ray` command.
"""

import os
import secrets
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo.stack import cluster, zygote

NOTICE_SECONDS = 3.0  # until Ray ends after one of its processes
START_SECONDS = 300.0  # that Ray may take to start: on a busy machine, 120 were too few
# In the folder of a run: what `ray start` writes once the cluster is up, and Ray's logs
ADDRESS, LOGS = "ray/ray_current_cluster", "ray/session_latest/logs"
# A raylet ends with its agent, so a process that only lives plays its part. Nobody listens on its ports, and root alone
# could.
_NO_AGENT = (
    '--dashboard_agent_command=sh -c "exec sleep infinity"',
    *("--dashboard_agent_listen_port=1", "--metrics_agent_port=2", "--metrics_export_port=3"),
)


@dataclass(frozen=True)
class RayHead:
    """The resources of a run's head node. `object_store_bytes` is its part of /dev/shm."""

    num_gpus: int
    num_cpus: int
    object_store_bytes: int


def variables() -> dict[str, str]:
    """Return the variables of a new cluster, for Ray and for every driver. Other users cannot read an environment."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # If it may have no second node, Ray listens on loopback alone. That is its default on Windows and macOS.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Workers that Ray starts before anybody asks have no job's variables, so no actor of ours can use them.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }


def start_command(head: RayHead, folder: Path) -> list[str]:
    """Return the command that starts Ray; it blocks. All ports are chosen free: other clusters may run here."""
    return [
        *(sys.executable, "-m", "grpo.launch.supervise.ray_head", "start", "--head", "--block"),
        *("--disable-usage-stats", "--include-dashboard=false", "--no-monitor"),  # the last is the autoscaler's
        *(f"--temp-dir={folder / 'ray'}", f"--object-store-memory={head.object_store_bytes}"),
        *(f"--num-gpus={head.num_gpus}", f"--num-cpus={head.num_cpus}"),
        *("--port=0", "--min-worker-port=0", "--max-worker-port=0"),
        f"--runtime-env-agent-port={cluster.free_port()}",  # a raylet waits 15 seconds for the agent's choice
    ]


def main() -> None:
    """Act as the `ray` command, with changes that it has no option for.

    It starts no client server, and no dashboard, not even one that serves nothing. On the CPU stack, the zygote forks
    its workers.
    """
    for name in ("ray.serve.scripts", "ray.dashboard.modules.job.cli"):  # whose imports take a second and 60 MB
        sys.modules[name] = None  # type: ignore[assignment]  # Ray does without what it cannot import
    from ray._private import parameter, services
    from ray.scripts import scripts

    ease_start()
    scripts.get_ray_client_dependency_error = lambda: ImportError("not wanted")  # keeps the client server off
    services.start_api_server = lambda *_, **__: ("", None)
    if zygote.VARIABLE in os.environ:
        own = partial(parameter.RayParams, setup_worker_path=zygote.__file__)
        parameter.RayParams = own  # type: ignore[misc, assignment]
    scripts.main()


def ease_start() -> None:
    """Let this process start a raylet that has no dashboard agent, and wait longer for it than Ray's 30 seconds.

    The agent exports metrics that nobody reads, for 3 seconds of CPU time and 90 MB. A raylet dies if the agent has not
    imported everything after 15 seconds: on a busy machine, or from a network disk that has not been read yet.
    """
    from ray._private import services

    get_node, until = services.get_node, time.monotonic() + 0.8 * START_SECONDS  # ends before the launcher does
    start_process = services.start_ray_process
    raylets: list[Any] = []

    def wait_for_node(*arguments: Any) -> Any:
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > until or any(raylet.poll() is not None for raylet in raylets):
                    raise
                time.sleep(0.2)

    def start(command: list[str], *arguments: Any, **named: Any) -> Any:
        if command[0] != services.RAYLET_EXECUTABLE:
            return start_process(command, *arguments, **named)
        raylet = start_process([*command, *_NO_AGENT], *arguments, **named)
        raylets.append(raylet.process)
        return raylet

    services.get_node, services.start_ray_process = wait_for_node, start


if __name__ == "__main__":
    main()
