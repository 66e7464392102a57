"""Checks the Ray cluster at RAY_ADDRESS before a run joins it: it must be this machine alone.

The judge's limits, the run directory and the shared memory of a sync all need one machine.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field

from grpo.stack.problem import Problem

# A separate driver, which leaves nothing of Ray in the launcher.
_PROBE = """
import json, ray
ray.init(log_to_driver=False)
print(json.dumps([node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]))
"""
PROBE_SECONDS = 60.0
REMEDY = "unset RAY_ADDRESS so that the run starts Ray itself, or join a cluster on this node only"


@dataclass
class Admission:
    """The result for a cluster: why it cannot be joined, and what the user should know about it."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def look() -> Admission:
    """Join the cluster at RAY_ADDRESS and leave it again. Takes some seconds; does nothing without RAY_ADDRESS."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return Admission()
    cluster = f"the cluster at RAY_ADDRESS {address}"
    has_token = os.environ.get("RAY_AUTH_MODE", "disabled") != "disabled"
    # First without a token, to see whether the cluster admits anyone.
    names, why = _probe({**os.environ, "RAY_AUTH_MODE": "disabled"})
    is_open = names is not None
    if not is_open and has_token:
        names, why = _probe(dict(os.environ))
    if names is None:
        remedy = (
            REMEDY if has_token else f"{REMEDY}; if it requires a token, export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        )
        return Admission([Problem(f"{cluster} cannot be joined: {why}", remedy)])
    if len(names) != 1:
        return Admission([Problem(f"{cluster} has {len(names)} nodes: {', '.join(names)}", REMEDY)])
    if names[0] != socket.gethostname():
        return Admission(
            [Problem(f"{cluster} runs on another machine, {names[0]}", f"start the run there, or {REMEDY}")]
        )
    return Admission(warnings=[_warning(cluster)] if is_open else [])


def _warning(cluster: str) -> str:
    return (
        f"WARNING: {cluster} is open: anyone who can reach it can run code as its user and read this run's keys. "
        "Start it with RAY_AUTH_MODE=token and a RAY_AUTH_TOKEN and export both here, or unset RAY_ADDRESS"
    )


def _probe(environment: dict[str, str]) -> tuple[list[str] | None, str]:
    """Return the names of the nodes, or None and why the cluster could not be joined."""
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {PROBE_SECONDS:.0f} s"
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), ""
