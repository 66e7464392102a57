"""What a run has beside OpenRLHF's actors, from the driver: the judge, and an agent on each other node."""

import os
import time
from pathlib import Path
from typing import Any

import ray

from grpo.launch.supervise import processes
from grpo.launch.supervise.node_agent import NodeAgent
from grpo.stack import cluster, seats
from reward import judge_place

# Until Ray has missed enough heartbeats of a node whose wire was cut.
NOTICE_SECONDS = 45.0
ANSWER_SECONDS = 15.0

# They live as long as these handles.
_agents: dict[str, Any] = {}
_judge: list[Any] = []


def start_helpers() -> None:
    """Start the judge on this node, and an agent on each other one.

    Raises:
        ray.exceptions.RayError: if one does not start.
    """
    _judge.append(judge_place.start(cluster.make_home_options()))
    chosen = seats.read()
    if chosen is None:
        return
    run_id, folder = os.environ[processes.RUN_ID_VARIABLE], str(Path(os.environ["TMPDIR"]).parent)
    agent = ray.remote(NodeAgent)
    for address in chosen.others:
        _agents[address] = agent.options(**cluster.make_node_options(address)).remote(run_id, folder)
    ray.get([one.answer.remote() for one in _agents.values()])


def find_lost(is_death: bool) -> list[str]:
    """Return the nodes of the run that Ray has lost; [] for a run on one node.

    Args:
        is_death: whether something died, so that it is worth to wait until Ray knows of its node.
    """
    until = time.monotonic() + (NOTICE_SECONDS if is_death else 0.0)
    while _agents:
        gone = cluster.lost_nodes()
        # Where an agent does not answer, its node may be lost.
        if gone or time.monotonic() > until or len(_answers("answer", 5.0)) == len(_agents):
            return gone
        time.sleep(1.0)
    return []


def deaths() -> dict[str, list[dict[str, Any]]]:
    """Return the deaths on the other nodes by address, as fields of a ``Death``."""
    return _answers("deaths", ANSWER_SECONDS)


def _answers(method: str, seconds: float) -> dict[str, Any]:
    """Return what the agents of the nodes answer in time."""
    calls = {getattr(one, method).remote(): address for address, one in _agents.items()}
    if not calls:
        return {}
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=seconds)
    answers = {}
    for call in ready:
        try:
            answers[calls[call]] = ray.get(call)
        except ray.exceptions.RayError:  # its node is lost
            continue
    return answers
