"""Hooks of openrlhf/trainer/ray/launcher.py: where the actor's ranks run."""

from grpo.stack import cluster

bundles = cluster.rank_bundles
