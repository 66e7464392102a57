"""Hooks of openrlhf/trainer/ray/launcher.py: how the actor's ranks meet."""

import os

from grpo.stack import cluster, numa, rendezvous


def bundles(ranks: int) -> list[dict[str, float]]:
    """Return the resources of each actor rank: ranks are packed on as few nodes as possible."""
    return cluster.rank_bundles(ranks)


def free_port() -> int:
    """Return a port at which ranks can meet in a joined cluster."""
    return cluster.free_port()


def install_rendezvous() -> None:
    """Let the ranks meet in a private file, before the process group is made.

    It is called first in every rank, so it also binds the rank to the cores next to its GPU, and shortens DeepSpeed's
    start.
    """
    from grpo.model import deepspeed_start  # imports DeepSpeed, which the engines' actors do without

    if bound := numa.bind_to_gpu():
        print(f"rank {os.environ['RANK']}: {bound}", flush=True)
    deepspeed_start.shorten()
    rendezvous.install()
