"""Flags of the launcher for several nodes."""

import argparse
from collections.abc import Iterator

from grpo.stack.problem import Problem


def add_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags; the launcher reads them, the trainer ignores them."""
    group.add_argument("--nodes", type=int, default=1, help="nodes of the run")
    group.add_argument(
        "--gpus_per_node", type=int, default=None, help="GPUs of each node (default, for one node: as many as needed)"
    )


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    if args.nodes < 1:
        yield Problem(f"--nodes is {args.nodes}", "give 1 or more")
    if args.gpus_per_node is not None and args.gpus_per_node < 1:
        yield Problem(f"--gpus_per_node is {args.gpus_per_node}", "give 1 or more, or remove it")
    if args.nodes > 1 and args.gpus_per_node is None:
        yield Problem(f"--nodes is {args.nodes}, but how many GPUs each has is unknown", "add --gpus_per_node")
    if args.nodes > 1 and args.colocate_all_models:
        yield Problem(
            f"--nodes is {args.nodes}, but --colocate_all_models, where engines and actor share GPUs, is for one node",
            "remove --colocate_all_models, or use --nodes 1",
        )
