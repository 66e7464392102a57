"""Hooks of openrlhf/trainer/ray/launcher.py: where the actor's ranks run."""

from grpo.stack import cluster


def bundles(ranks: int) -> list[dict[str, float]]:
    """Return the resources of each actor rank: ranks are packed on as few nodes as possible."""
    return cluster.rank_bundles(ranks)
