"""Metrics over several steps, computed from the lines of metrics.jsonl, so a resumed run continues them."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def rolling_correlation(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the correlation of reward and correctness over the rollouts of several steps; None without spread.

    It is computed from each step's means and spreads. It is exact if correctness is 0 or 1, since steps have equally
    many rollouts.

    Args:
        rows: lines of metrics.jsonl; lines without correctness are skipped.
    """
    known = [row for row in rows if row.get("correct") is not None and row.get("reward_std") is not None]
    if not known:
        return None
    reward, right = (fmean(row[name] for row in known) for name in ("reward", "correct"))
    covariance = fmean(
        (row.get("reward_correct_correlation") or 0.0) * row["reward_std"] * _binary_spread(row["correct"])
        + (row["reward"] - reward) * (row["correct"] - right)
        for row in known
    )
    variance = fmean(row["reward_std"] ** 2 + (row["reward"] - reward) ** 2 for row in known)
    scale = math.sqrt(variance) * _binary_spread(right)
    return covariance / scale if scale > 1e-12 else None


def _binary_spread(mean: float) -> float:
    return math.sqrt(max(0.0, mean * (1 - mean)))
