"""PIPELINE: a step in turn, and one that samples the next batch while it trains.

Engines, judge and ranks wait for stated times; the loop is the real one, see `scripts.bench.parts.waiting_run`. A step
in turn takes the sum of its parts. One step ahead, it takes the longer of sampling and training, and the sync, unless
the judge takes longer than they leave. Steps are the median of those that have a step before and after them.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from grpo.launch.supervise import ray_head
from grpo.stack.problem import UserError
from scripts import local_ray
from scripts.bench.harness import Result
from scripts.bench.machine import Copy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sampling", type=float, default=2.0, help="seconds of the engines for a batch (default: 2)")
    parser.add_argument("--judge", type=float, default=1.0, help="seconds of the judge for a response (default: 1)")
    parser.add_argument("--training", type=float, default=2.5, help="seconds of the ranks for a batch (default: 2.5)")
    parser.add_argument("--sync", type=float, default=0.5, help="seconds of a sync (default: 0.5)")
    parser.add_argument("--steps", type=int, default=6, help="global steps of each run (default: 6)")
    parser.add_argument("--most", type=float, default=5.0, help="percent that a step may take longer (default: 5)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if options.steps < 3 or min(options.sampling, options.judge, options.training, options.sync) < 0:
        raise UserError("an option is out of range", "--steps must be at least 3, and no time below 0")
    scratch = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    os.environ.update(ray_head.variables())  # before Ray is imported
    with contextlib.redirect_stdout(sys.stderr):  # what OpenRLHF prints and logs; the result is on stdout
        from scripts.bench.parts.waiting_run import Latencies, rows_of

        latencies = Latencies(options.sampling, options.judge, options.training, options.sync)
        try:
            with local_ray.started(scratch / "ray", cpus=4):
                runs = {
                    name: rows_of(scratch / name, latencies, options.steps, is_ahead)
                    for name, is_ahead in (("stock", False), ("ours", True))
                }
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    seconds, details = {}, {"in_turn_s": latencies.in_turn(), "ahead_s": latencies.ahead()}
    for name, rows in runs.items():
        seconds[name] = statistics.median(row["seconds"]["total"] for row in rows[1:-1])
        details |= {f"{name}_{phase}_s": value for phase, value in rows[-2]["seconds"].items() if phase != "total"}
    details["over_percent"] = 100 * (seconds["ours"] / latencies.ahead() - 1)
    return Result(
        what=f"a step with {options.sampling:g} s of sampling, {options.judge:g} s of the judge, {options.training:g} "
        f"s of training and {options.sync:g} s of a sync",
        unit="s",
        stock=seconds["stock"],
        ours=seconds["ours"],
        higher_is_better=False,
        details=details,
        extrapolation=(
            "gpt-oss-120b: ./train_grpo.sh --plan has the seconds of sampling and training, and of a step with and "
            "without PIPELINE=1",
        ),
        missed=(
            f"a step ahead takes {details['over_percent']:.1f}% longer than its parts allow; at most "
            f"{options.most:g}% are allowed"
            if details["over_percent"] > options.most
            else ""
        ),
    )
