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
    group.add_argument(
        "--sigterm_seconds", type=float, default=0.0, help="after SIGTERM, time to save before the run is ended"
    )
    group.add_argument(
        "--stop_fall", type=float, default=None, help="end the run if held-out exact match falls by this"
    )
    group.add_argument("--stop_non_finite", action="store_true", help="end the run if the loss is not finite")
    group.add_argument("--stop_disk_gb", type=float, default=None, help="end the run if a disk has less left")
    group.add_argument(
        "--stop_judge_failed",
        type=float,
        default=None,
        help="end the run if the judge fails on more than this share of the samples of 3 steps in a row",
    )


def problems(args: argparse.Namespace) -> Iterator[Problem]:
    """Yield each problem of these arguments with its remedy."""
    if args.restarts < 0:
        yield Problem(f"--restarts is {args.restarts}", "give 0 or more")
    if not 0 <= args.hang_minutes < math.inf:
        yield Problem(f"--hang_minutes is {args.hang_minutes:g}", "give minutes, or 0 for no check")
    if not 0 <= args.sigterm_seconds < math.inf:
        yield Problem(f"--sigterm_seconds is {args.sigterm_seconds:g}", "give seconds, or 0 to end at once")
    if args.stop_fall is not None and not 0 < args.stop_fall <= 1:
        yield Problem(f"--stop_fall is {args.stop_fall:g}", "give more than 0 and at most 1, or remove it")
    if args.stop_judge_failed is not None and not 0 <= args.stop_judge_failed < 1:
        yield Problem(f"--stop_judge_failed is {args.stop_judge_failed:g}", "give a share below 1, or remove it")
    if args.stop_disk_gb is not None and not args.stop_disk_gb > 0:
        yield Problem(f"--stop_disk_gb is {args.stop_disk_gb:g}", "give more than 0, or remove it")
