"""What the driver tells Ray, the places it asks for, the ports of a run, and when its engines are ready."""

import os
import random
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.stack.secrets import is_secret
from grpo.stack.upstream import EngineActor

if TYPE_CHECKING:
    from ray import ObjectRef

# Environment variables exported after a Ray cluster has started do not reach its workers, so these travel with the job.
# Secrets are not in this list, since Ray writes a job's runtime_env to its logs. Export them before `ray start`.
FORWARDED_PREFIXES = (
    *("GRPO_", "VLLM_", "OMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_", "NCCL_", "DS_", "TORCH", "PYTORCH_"),
    *("HF_HUB_", "HF_HOME", "WANDB_", "TRACKIO_"),
)
FORWARDED_NAMES = ("PYTHONPATH", "PATH", "TOKENIZERS_PARALLELISM", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES")

# The ephemeral ports, which the kernel assigns to anyone who connects or asks for any port (ip(7)).
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ray's workers get 10002 to 19999, or ephemeral ports.
FIRST_PORT = 20000
NOTICE_SECONDS = 45.0  # until Ray has missed enough heartbeats of a node whose wire was cut

_at_start: list[str] = []


def runtime_env(environ: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    """Return the ``runtime_env`` of ``ray.init``: this process's variables that the workers need, without secrets."""
    environ = dict(os.environ) if environ is None else environ
    variables = {
        name: value
        for name, value in environ.items()
        if (name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES))
        and (name in FORWARDED_NAMES or not is_secret(name))
    }
    variables.setdefault("TOKENIZERS_PARALLELISM", "true")
    variables.setdefault("NCCL_DEBUG", "WARN")
    return {"env_vars": variables}


def engine_bundles(engines: int, width: int) -> list[dict[str, float]]:
    """Return the resources of each engine's workers, in their order. They take the cluster's last GPUs."""
    return _bundles(engines * width, is_last=True)


def rank_bundles(ranks: int) -> list[dict[str, float]]:
    """Return the resources of each actor rank, in their order. They take the cluster's first GPUs."""
    return _bundles(ranks, is_last=False)


def _bundles(count: int, is_last: bool) -> list[dict[str, float]]:
    gpus = list_gpus()
    if len(set(gpus)) < 2:
        return [{"GPU": 1, "CPU": 1} for _ in range(count)]
    # Every node has one unit of a resource that is named for it.
    return [{"GPU": 1, "CPU": 1, f"node:{address}": 0.001} for address in (gpus[-count:] if is_last else gpus[:count])]


def list_gpus() -> list[str]:
    """Return the address in Ray of each GPU's node, this process's node first. It must be connected to Ray.

    Nodes have equally many GPUs, a multiple of those of an engine (:mod:`grpo.launch.supervise.joined_cluster`). So an
    engine spans no two nodes, and ranks span as few as possible.
    """
    import ray  # takes a second, and most callers need none

    home = ray.get_runtime_context().get_node_id()
    living = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != home)
    return [node["NodeManagerAddress"] for node in living for _ in range(int(node["Resources"].get("GPU", 0)))]


def make_home_options() -> dict[str, Any]:
    """Return the options that place an actor on this process's node without taking a CPU."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    home = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(home, soft=False)}


def note_nodes() -> None:
    """Note the nodes of the cluster at the start of a run, which it can lose."""
    _at_start.extend(dict.fromkeys(list_gpus()))


def wait_for_lost_nodes() -> list[str]:
    """Return the addresses of nodes that Ray has lost since :func:`note_nodes`; waits, if there were several."""
    import ray

    until = time.monotonic() + NOTICE_SECONDS
    while len(_at_start) > 1:
        living = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        lost = [address for address in _at_start if address not in living]
        if lost or time.monotonic() > until:
            return lost
        time.sleep(1.0)
    return []


def engines_ready(engines: Sequence[EngineActor] | None) -> "list[ObjectRef[int]]":
    """Return one reference per vLLM engine that resolves when the engine has started, or raises the reason why not.

    OpenRLHF waits for the actor alone and would start training first. ``ray.get`` on the list raises the first error at
    once.
    """
    return [engine.get_num_unfinished_requests.remote() for engine in engines or []]


def free_port() -> int:
    """Return a TCP port that is free now and that the kernel does not assign on its own.

    The listener may take half a minute to start. By then a port that the kernel chose may be taken. If the kernel may
    assign every port, or hides its range, any free port is returned.
    """
    try:
        first, last = map(int, EPHEMERAL_PORTS.read_text().split())
    except OSError:  # a container that hides it
        first, last = 0, 2**16
    ports = [port for port in range(FIRST_PORT, 2**16) if not first <= port <= last]
    # Not the trainer's generator: runs with the same seed would pick the same port.
    drawn = random.SystemRandom().sample(ports, min(len(ports), 100))
    return next(filter(None, map(_bind_port, [*drawn, 0])))


def _bind_port(port: int) -> int:
    """Return the port if it is free, any free one for 0, and 0 if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return 0
        return int(probe.getsockname()[1])
