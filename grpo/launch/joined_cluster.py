"""The Ray cluster at RAY_ADDRESS, before a run joins it: it has to be this machine, and nothing else.

The judge's limits, the run directory and the shared memory of a sync are of one machine.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from grpo.launch.checks import Problem

# A driver of its own, which leaves nothing of Ray in the launcher.
_PROBE = """
import json, ray
ray.init(log_to_driver=False)
print(json.dumps([node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]]))
"""
PROBE_SECONDS = 60.0
REMEDY = "unset RAY_ADDRESS to let the run start Ray itself, or join a cluster of this one node"


def check() -> Iterator[Problem]:
    """Look for nodes besides this machine. Takes some seconds where RAY_ADDRESS is set, nothing otherwise."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        yield Problem(f"the cluster at RAY_ADDRESS {address} did not answer within {PROBE_SECONDS:.0f} s", REMEDY)
        return
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Problem(f"the cluster at RAY_ADDRESS {address} cannot be joined: {why}", REMEDY)
        return
    names = json.loads(done.stdout.splitlines()[-1])
    if len(names) != 1:
        yield Problem(f"the cluster at RAY_ADDRESS {address} has {len(names)} nodes: {', '.join(names)}", REMEDY)
    elif names[0] != socket.gethostname():
        yield Problem(
            f"the cluster at RAY_ADDRESS {address} is another machine, {names[0]}", f"start there, or {REMEDY}"
        )
