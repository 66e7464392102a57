"""The rung about the trainer: ZeRO-3 with everything offloaded, a save, and a resume in new processes.

The resumed trainer must hold the same bits: adapter, fp32 weights, moments, schedule and random states, those of the
GPU included. What it computes next may differ from the first trainer by rounding.
"""

import tempfile
from pathlib import Path
from typing import Any

from grpo.stack.problem import UserError
from scripts.bench.parts.random_model import write_random_model
from scripts.bench.parts.ranks import run_ranks
from scripts.gpu_check.rung import Passed

WORKER = "scripts.gpu_check.trainer_worker"
ROUNDING = 0.01  # of a loss


def check(gpus: int, experts: int = 32, intermediate: int = 2880) -> Passed:
    """Train two steps, save, and train on; then resume in new processes, and train as far."""
    ranks = gpus or 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        model = Path(scratch, "model")
        write_random_model(model, layers=2, experts=experts, intermediate=intermediate)
        job: dict[str, Any] = {"model": str(model), "scratch": scratch, "resume": False}
        first = run_ranks(WORKER, ranks, job, own_gpu=gpus > 0)
        again = run_ranks(WORKER, ranks, job | {"resume": True}, own_gpu=gpus > 0)
    compare(first, again)
    apart = max(abs(a - b) / abs(a) for one, other in zip(first, again, strict=True) for a, b in _losses(one, other))
    if not apart < ROUNDING:
        raise UserError(f"after the resume, losses differ by {apart:.1%}; {ROUNDING:.0%} are rounding")
    seconds = max(report["step_s"] for report in first)
    peak = max(report["peak_gb"] for report in first)
    return Passed(
        f"{ranks} ranks: states and draws equal after a resume, losses within {apart:.2%}; a step {seconds:.1f} s, "
        f"{peak:.1f} GB",
        {"ranks": ranks, "step_s": seconds, "peak_gb": peak, "losses_apart": apart},
    )


def compare(first: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    """Raise UserError with the first rank and name that differ."""
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in (one["saved"] | {"draws": one["draws"]}).items():
            resumed = (other["saved"] | {"draws": other["draws"]})[name]
            if value != resumed:
                raise UserError(f"rank {rank}: {name} differs after a resume: {value} and {resumed}")


def _losses(one: dict[str, Any], other: dict[str, Any]) -> zip:
    return zip(one["losses"], other["losses"], strict=True)
