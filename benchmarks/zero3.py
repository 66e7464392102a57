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

from benchmarks.ladder import Passed
from benchmarks.random_model import shrink, write_model
from benchmarks.ranks import run_ranks
from grpo.stack.problem import UserError

_ROUNDING = 0.01  # of a loss


def check(gpus: int, experts: int = 32, intermediate: int = 2880) -> Passed:
    """Train two steps, save, and train on; then resume in new processes, and train as far."""
    ranks = gpus or 2
    with tempfile.TemporaryDirectory() as scratch:
        write_model(Path(scratch, "model"), shrink(layers=2, experts=experts, intermediate=intermediate))
        job: dict[str, Any] = {"scratch": scratch, "lora_rank": 16, "task": "train", "offload": "cpu"}
        first = run_ranks("zero3_worker", ranks, job, own_gpu=gpus > 0)
        again = run_ranks("zero3_worker", ranks, job | {"task": "resume", "offload": "none"}, own_gpu=gpus > 0)
    counts = count_gathered(first + again)
    compare(first, again)
    losses, resumed = ([loss for report in reports for loss in report["losses"]] for reports in (first, again))
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses, resumed, strict=True))
    if not apart < _ROUNDING:
        raise UserError(f"after the resume, losses differ by {apart:.1%}; {_ROUNDING:.0%} are rounding")
    seconds, peak = (max(report[name] for report in first) for name in ("step_s", "peak_gb"))
    shown = " and ".join(f"{count:,} of {dtype}" for dtype, count in counts.items())
    # DeepSpeed's gather returns at once if there is one rank.
    said = f"{ranks} ranks gathered {shown}, all right" if ranks > 1 else "1 rank: nothing was gathered"
    numbers = {"ranks": ranks, "gathered": counts if ranks > 1 else {}}
    return Passed(
        f"{said}; states and draws equal after a resume, losses within {apart:.2%}; a step {seconds:.1f} s, "
        f"{peak:.1f} GB",
        numbers | {"step_s": seconds, "peak_gb": peak, "losses_apart": apart},
    )


def count_gathered(reports: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how many parameters of each dtype the modules got with the values of the files: packed ones and bf16."""
    for report in reports:
        if wrong := report["wrong"]:
            raise UserError(f"rank {report['rank']} computed with {len(wrong)} parameters that differ: {wrong[0]}, ...")
    counts = sum((Counter(report["right"]) for report in reports), Counter[str]())
    if set(counts) != {"uint8", "bfloat16"}:
        raise UserError(f"parameters of {', '.join(counts) or 'no dtype'} were compared, not those in uint8 and bf16")
    return dict(counts)


def compare(first: list[dict[str, Any]], again: list[dict[str, Any]]) -> None:
    """Raise UserError with the first rank and name that differ."""
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in one["saved"].items():
            if value != other["saved"][name]:
                raise UserError(f"rank {rank}: {name} differs after a resume: {value} and {other['saved'][name]}")
