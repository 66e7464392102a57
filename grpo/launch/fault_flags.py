"""Flags of the launcher for faults: what it does when a run crashes, hangs or is told to end."""

import argparse
import math
from collections.abc import Iterator

from grpo.stack.problem import Problem


def add_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags; the launcher reads them, the trainer ignores them."""
    group.add_argument(
        "--restarts", type=int, default=0, help="after a crash, continue at most this often without a new checkpoint"
    )
    group.add_argument(
        "--hang_minutes",
        type=float,
        default=0.0,
        help="end a run whose phase lasts this long and 5 times as long as usual (4 times this, if it is the first; "
        "0: never)",
    )


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    if args.restarts < 0:
        yield Problem(f"--restarts is {args.restarts}", "give 0 or more")
    if not 0 <= args.hang_minutes < math.inf:
        yield Problem(f"--hang_minutes is {args.hang_minutes:g}", "give minutes, or 0 for no check")
