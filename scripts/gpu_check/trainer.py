"""The rung about the trainer: ZeRO-3 with everything offloaded, a save, and a resume in new processes.

The resumed trainer, whose parameters are on the GPU, must hold the same bits: adapter, fp32 weights, moments, schedule
and random states, those of the GPU included. What it computes next may differ from the first trainer by rounding.
With several ranks, both trainers gather packed and bf16 parameters, which must have the values of the files.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts.random_model import write_random_model
from benchmarks.parts.ranks import run_ranks
from grpo.stack.problem import UserError
from scripts.gpu_check.rung import Passed

WORKER = "scripts.gpu_check.trainer_worker"
ROUNDING = 0.01  # of a loss


def check(gpus: int, experts: int = 32, intermediate: int = 2880) -> Passed:
    """Train two steps, save, and train on; then resume in new processes, and train as far."""
    ranks = gpus or 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        model = Path(scratch, "model")
        write_random_model(model, layers=2, experts=experts, intermediate=intermediate)
        job: dict[str, Any] = {"model": str(model), "scratch": scratch, "resume": False, "offload": "cpu"}
        first = run_ranks(WORKER, ranks, job, own_gpu=gpus > 0)
        again = run_ranks(WORKER, ranks, job | {"resume": True, "offload": "none"}, own_gpu=gpus > 0)
    counts = count_gathered(first + again)
    compare(first, again)
    losses, resumed = ([loss for report in reports for loss in report["losses"]] for reports in (first, again))
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses, resumed, strict=True))
    if not apart < ROUNDING:
        raise UserError(f"after the resume, losses differ by {apart:.1%}; {ROUNDING:.0%} are rounding")
    seconds = max(report["step_s"] for report in first)
    peak = max(report["peak_gb"] for report in first)
    shown = " and ".join(f"{count:,} of {dtype}" for dtype, count in counts.items())
    # DeepSpeed's gather returns at once if there is one rank.
    said = f"{ranks} ranks gathered {shown}, all right" if ranks > 1 else "1 rank: nothing was gathered"
    return Passed(
        f"{said}; states and draws equal after a resume, losses within {apart:.2%}; a step {seconds:.1f} s, "
        f"{peak:.1f} GB",
        {
            "ranks": ranks,
            "gathered": counts if ranks > 1 else {},
            "step_s": seconds,
            "peak_gb": peak,
            "losses_apart": apart,
        },
    )


def count_gathered(reports: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how many parameters of each dtype the ranks' modules got with the values of the files.

    Raises:
        UserError: if one had other values, or none was packed, or none was in bf16.
    """
    for number, report in enumerate(reports):
        if wrong := report["wrong"]:
            also = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            rank = number % (len(reports) // 2)
            raise UserError(f"rank {rank} computed with another {wrong[0]}{also} than the files have")
    counts = sum((Counter(report["right"]) for report in reports), Counter[str]())
    if set(counts) != {"uint8", "bfloat16"}:
        raise UserError(f"parameters of {', '.join(counts) or 'no dtype'} were compared, not those in uint8 and bf16")
    return dict(counts)


def compare(first: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    """Raise UserError with the first rank and name that differ."""
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in (one["saved"] | {"draws": one["draws"]}).items():
            resumed = (other["saved"] | {"draws": other["draws"]})[name]
            if value != resumed:
                raise UserError(f"rank {rank}: {name} differs after a resume: {value} and {resumed}")
