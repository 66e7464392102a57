"""Checks the Ray cluster at RAY_ADDRESS before a run joins it, and chooses which of its nodes serves whom.

The launcher's own machine is one of the nodes: it gets driver, controller, judge, metrics and rollouts. A cluster of
several nodes must require a token, since its ports are open to the network.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from grpo.launch.config import Config
from grpo.stack import seats
from grpo.stack.counted import format_count, format_numbers
from grpo.stack.problem import Problem, UserError
from grpo.stack.seats import Node, Seats

# A separate driver, which leaves nothing of Ray in the launcher. Free resources are known to whoever is connected.
_PROBE = """
import json, ray
from ray._private import state
ray.init(log_to_driver=False)
home, free = ray.get_runtime_context().get_node_id(), state.available_resources_per_node()
print(json.dumps([
    [node["NodeManagerHostname"], node["NodeManagerAddress"], free.get(node["NodeID"], {}).get("GPU", 0),
     node["Resources"].get("GPU", 0), node["NodeID"] == home]
    for node in ray.nodes() if node["Alive"]
]))
"""
PROBE_SECONDS = 60.0
# After a restart: Ray needs seconds to free the GPUs of a run that failed, and a lost node may come back.
ROOM_SECONDS, LOOK_AGAIN_SECONDS = 600.0, 10.0
REMEDY = "unset RAY_ADDRESS so that the run starts Ray itself, or join a cluster that this machine is a node of"
TOKEN_REMEDY = "start it with RAY_AUTH_MODE=token and a RAY_AUTH_TOKEN and export both here, or unset RAY_ADDRESS"


@dataclass(frozen=True)
class Member:
    """A living node: its host name, its address, its free GPUs, all its GPUs, and whether it is this machine."""

    name: str
    address: str
    free: int
    gpus: int
    is_home: bool


@dataclass
class Admission:
    """The result for a cluster: why it cannot be joined, what the user should know, and the places of the run.

    Attributes:
        seats: None if the cluster is this machine alone.
    """

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seats: Seats | None = None


def look(config: Config, patience: float = 0.0) -> Admission:
    """Join the cluster at RAY_ADDRESS and leave it again. Takes some seconds; does nothing without RAY_ADDRESS.

    Args:
        patience: seconds to wait for free GPUs in a cluster of several nodes.
    """
    address = os.environ.get("RAY_ADDRESS")
    os.environ.pop(seats.VARIABLE, None)  # of an earlier part of the run
    if not address:
        return Admission()
    cluster = f"the cluster at RAY_ADDRESS {address}"
    has_token = os.environ.get("RAY_AUTH_MODE", "disabled") != "disabled"
    # First without a token, to see whether the cluster admits anyone.
    members, why = _probe({**os.environ, "RAY_AUTH_MODE": "disabled"})
    is_open = members is not None
    if not is_open and has_token:
        members, why = _probe(dict(os.environ))
    if members is None:
        remedy = (
            REMEDY if has_token else f"{REMEDY}; if it requires a token, export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        )
        return Admission([Problem(f"{cluster} cannot be joined: {why}", remedy)])
    names = ", ".join(member.name for member in members)
    if not any(member.is_home and member.name == socket.gethostname() for member in members):
        return Admission([Problem(f"{cluster} runs on other machines: {names}", f"start the run there, or {REMEDY}")])
    if is_open and len(members) > 1:
        what = f"{cluster} has {format_count(len(members), 'node')} ({names}) and admits anyone who can reach it"
        return Admission([Problem(what, TOKEN_REMEDY)])
    try:
        found = _take_places(config, members, patience)
    except UserError as error:
        return Admission([error.problem])
    return Admission(warnings=[_warning(cluster)] if is_open else [], seats=found)


def _warning(cluster: str) -> str:
    return (
        f"WARNING: {cluster} is open: anyone who can reach it can run code as its user and read this run's keys. "
        f"{TOKEN_REMEDY[0].upper()}{TOKEN_REMEDY[1:]}"
    )


def _take_places(config: Config, members: list[Member], patience: float) -> Seats | None:
    """Choose the places of the run as soon as enough GPUs are free.

    Raises:
        UserError: if they are still too few after `patience` seconds.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return _choose_seats(config, members)
        except UserError:
            if time.monotonic() > until:
                raise
        have, all_gpus = sum(member.free for member in members), sum(member.gpus for member in members)
        on = format_count(len(members), "node")
        print(f"waiting for GPUs: {have} of {all_gpus} on {on} are free, {config.gpus} needed", flush=True)
        time.sleep(LOOK_AGAIN_SECONDS)
        members = _probe(dict(os.environ))[0] or members


def _choose_seats(config: Config, members: list[Member]) -> Seats | None:
    """Choose the places of the run; None in a cluster of this machine alone, where Ray does.

    Raises:
        UserError: if the free GPUs do not suffice, or if engines and actor share GPUs in a cluster of several nodes.
    """
    if len(members) == 1:
        if members[0].free >= config.gpus:
            return None
        raise UserError(
            f"the run needs {format_count(config.gpus, 'GPU')}, but {members[0].free} of {members[0].gpus} are free in "
            "the cluster at RAY_ADDRESS",
            "lower NUM_ENGINES, ENGINE_TP or ACTOR_GPUS, or wait until others free GPUs",
        )
    args = config.args
    if args.colocate_all_models:  # OpenRLHF lets Ray choose the nodes of shared GPUs, so an engine could span two
        names = ", ".join(member.name for member in members)
        raise UserError(
            "COLOCATE=1, where engines and actor share GPUs, is for one node, but the cluster at RAY_ADDRESS has "
            f"{format_count(len(members), 'node')} ({names})",
            "set COLOCATE=0, or unset RAY_ADDRESS so that the run starts Ray itself",
        )
    nodes = [Node(member.address, member.free) for member in members]
    home = next(member.address for member in members if member.is_home)
    return seats.place(nodes, home, args.vllm_num_engines, args.vllm_tensor_parallel_size, config.actor_ranks)


def _probe(environment: dict[str, str]) -> tuple[list[Member] | None, str]:
    """Return the living nodes, or None and why the cluster could not be joined."""
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {PROBE_SECONDS:.0f} s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    rows = json.loads(done.stdout.splitlines()[-1])
    return [Member(name, address, int(free), int(gpus), home) for name, address, free, gpus, home in rows], ""


def describe(found: Seats) -> list[str]:
    """Name the node of each part of the run, in lines for people."""
    lines: list[str] = []
    for node in found.nodes:
        parts = ["the launcher, the controller and the judge"] if node == found.home else []
        for noun, places in (("engine", found.engines), ("actor rank", found.ranks)):
            if node in places:
                parts.append(format_numbers(noun, [number for number, place in enumerate(places) if place == node]))
        lines.append(f"{'' if lines else 'nodes':<12}{node}: {'; '.join(parts)}")
    return lines
