"""Hooks of openrlhf/trainer/ray/launcher.py: how the actor's ranks meet."""

from grpo.stack import cluster, rendezvous


def free_port() -> int:
    """Return a port at which ranks can meet in a joined cluster."""
    return cluster.free_port()


def install_rendezvous() -> None:
    """Let the ranks meet in a private file, before the process group is made, and shorten DeepSpeed's start."""
    from grpo.model import deepspeed_start  # imports DeepSpeed, which the engines' actors do without

    deepspeed_start.shorten()
    rendezvous.install()
