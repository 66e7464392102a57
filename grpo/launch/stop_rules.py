"""Rules that end a run. Those that look at the lines that the run logs are off by default."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from grpo.launch.supervise.last_words import LastWords
from grpo.launch.supervise.watch import Stop
from grpo.metrics.parity import PolicyMismatch
from grpo.run.measure import get_name, get_value, keep_last_measure
from grpo.run.progress import Progress, is_number
from grpo.stack import machine
from grpo.stack.problem import Problem

JUDGE_STEPS = 3  # in a row
LOSS = "policy_loss"


def find(args: argparse.Namespace, progress: Progress, folders: dict[str, Path]) -> Stop | None:
    """Return the first rule of these flags that applies; None if the run may continue."""
    return next(_stops(args, progress, folders), None)


def _stops(args: argparse.Namespace, progress: Progress, folders: dict[str, Path]) -> Iterator[Stop]:
    rows = progress.metrics.read_this_part()  # a rule that ended an earlier part must not end this one at once
    if args.stop_non_finite and rows and rows[-1].get("dropped_values") and not is_number(rows[-1].get(LOSS)):
        yield Stop(_not_finite(rows[-1]["step"]), is_saved=False)
    if args.stop_fall is not None and (reason := _fall(args.stop_fall, progress)):
        yield Stop(reason)
    if args.stop_disk_gb is not None:
        for name, folder in folders.items():
            free = machine.disk_free(folder) / machine.GB
            if free < args.stop_disk_gb:
                what = f"the disk of {name} has {free:.1f} GB left: {folder}"
                yield Stop(Problem(what, "free disk space, or lower STOP_DISK_GB"))
    if args.stop_judge_failed is not None:
        shares = [row.get("judge_failed") for row in rows[-JUDGE_STEPS:]]
        if len(shares) == JUDGE_STEPS and all(is_number(share) and share > args.stop_judge_failed for share in shares):
            what = f"the judge failed on more than {args.stop_judge_failed:.0%} of the rollouts of {JUDGE_STEPS} steps"
            yield Stop(Problem(what, "see the judge's errors in docs/reward.md, or raise STOP_JUDGE_FAILED"))


def explain_failure(args: argparse.Namespace, step: int, words: LastWords | None) -> Problem | None:
    """Return the rule that explains the exception of the driver; None if none does.

    The parity gate is one: a run that is started again computes the same.

    ZeRO-3 applies a gradient that is not finite. :func:`grpo.lora.adapter.gather` raises at the sync after it, before
    the step is logged.

    Args:
        step: the last step that was logged.
    """
    if words and words.kind == PolicyMismatch.__name__:
        return Problem(words.what, words.remedy)
    is_rule = args.stop_non_finite and words and words.kind == FloatingPointError.__name__
    return _not_finite(step + 1) if is_rule else None


def _not_finite(step: int) -> Problem:
    return Problem(f"step {step}: the loss is not finite", "continue from an earlier step with a lower LEARNING_RATE")


def _fall(amount: float, progress: Progress) -> Problem | None:
    """Compare the newest evaluation with the best one of the same measure."""
    rows = keep_last_measure(progress.evals.rows)
    values = [(value, row["step"]) for row in rows if is_number(value := get_value(row))]
    if not progress.evals.read_this_part() or not values or max(values)[0] - values[-1][0] < amount:
        return None
    (best, at), (now, step) = max(values), values[-1]
    name = get_name(progress.evals.rows[-1])
    what = f"held-out {name} fell from {best:.3f} at step {at} to {now:.3f} at step {step}"
    return Problem(what, f"the best checkpoint is kept: step_{at}" if at else "see docs/tuning.md")
