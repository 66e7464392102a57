"""The diagnosis that one would write first: fixed limits on single values, and first value against last."""

import itertools
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]


def findings(rows: Rows, evals: Rows) -> set[str]:
    """Return the names of the detected pathologies."""
    return {name for name, shows in RULES.items() if shows(rows, evals)}


def _values(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _gain(rows: Rows, name: str) -> float:
    values = _values(rows, name)
    return values[-1] - values[0] if values else 0.0


def _share_left(rows: Rows, name: str) -> float:
    values = _values(rows, name)
    return values[-1] / values[0] if values and values[0] else 1.0


def _any_above(rows: Rows, name: str, limit: float) -> bool:
    return any(abs(value) > limit for value in _values(rows, name))


def _learning_rate_jumps(rows: Rows) -> bool:
    rates = _values(rows, "actor_lr")
    return any(after > 1.5 * before for before, after in itertools.pairwise(rates[5:]))


RULES: dict[str, Callable[[Rows, Rows], bool]] = {
    "flat_learning": lambda rows, evals: abs(_gain(rows, "correct")) < 0.05,
    "over_fitting": lambda rows, evals: (
        len(evals) > 1 and _gain(rows, "correct") > 0.1 and _gain(evals, "exact_match") <= 0.03
    ),
    "correctness_fall": lambda rows, evals: _gain(rows, "correct") < -0.2,
    "reward_hacking": lambda rows, evals: _gain(rows, "reward") > 0.03 and _gain(rows, "correct") <= 0,
    "instability": lambda rows, evals: (
        _gain(rows, "correct") < -0.1 and (_any_above(rows, "ppo_kl", 0.05) or _any_above(rows, "grad_norm", 1.0))
    ),
    "spikes": lambda rows, evals: _any_above(rows, "policy_loss_spike", 10),
    "lr_shock": lambda rows, evals: _learning_rate_jumps(rows),
    "off_policy": lambda rows, evals: (
        _any_above(rows, "optimizer_steps", 1) and _any_above(rows, "ppo_clip_ratio", 0.2)
    ),
    "mismatch": lambda rows, evals: _any_above(rows, "logprob_diff_mean", 0.05),
    "length_collapse": lambda rows, evals: _share_left(rows, "response_length") < 0.6,
    "entropy_collapse": lambda rows, evals: _share_left(rows, "entropy") < 0.5,
    "truncation": lambda rows, evals: _any_above(rows, "truncated", 0.3),
    "judge_outage": lambda rows, evals: _any_above(rows, "judge_failed", 0.05),
    "judge_drift": lambda rows, evals: abs(_gain(rows, "judge_quality_right")) > 0.1,
    "judge_dependent": lambda rows, evals: any(
        value < 0.5 for value in _values(rows, "reward_correct_correlation")
    ),
}  # fmt: skip
