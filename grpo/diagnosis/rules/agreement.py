"""Do trainer and engine, and two passes of the trainer, compute the same policy?"""

import numpy as np

from grpo.diagnosis.finding import (
    CRITICAL,
    WARNING,
    Evidence,
    Finding,
    NotJudged,
    number,
)
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.update import edge
from grpo.diagnosis.series import Series, spells

START = 5  # steps that give the difference between two kernels
AT_REST = 0.1  # of the highest learning rate: up to it, in the warmup, an update changes almost nothing
NOTHING = 1e-9  # a learning rate that changes nothing at all
SHORT_WARM_UP = 0.5  # of the peak: a first step at a higher rate says nothing about an update at a lower one
HARDLY_LESS = 0.5  # of the ratio at the full learning rate: an update at a fifth of it changes less
CLIPPED_AT_REST, KL_AT_REST = 0.02, 0.01  # more than the rounding of two passes


def mismatch(run: RunHistory) -> list[Finding] | str:
    """The log-probs of sampled tokens differ between trainer and engine by more than two kernels' noise."""
    if run.setting("PIPELINE"):
        raise NotJudged("with PIPELINE=1 the trainer is a step ahead of the engines' policy; see ppo_kl")
    column = run.require_column("logprob_diff_mean", 4)
    values, limit = column.values, edge("logprob_diff_mean")
    if len(values) >= 2 * START:
        # Well below the limit, a lasting fivefold rise over its own start means that a sync no longer arrives.
        limit = min(limit, max(5 * float(np.median(values[:START])), 0.4 * limit))
    mismatched = spells(values > limit, least=4, gap=1)
    if not mismatched:
        return f"logprob_diff_mean {number(float(np.median(values)))}, at most {number(float(values.max()))}"
    findings = []
    for begin, end in mismatched:
        first, last = int(column.steps[begin]), int(column.steps[end])
        within = values[begin : end + 1]
        evidence = [
            Evidence("logprob_diff_mean", first, last, {"median": float(np.median(within)), "limit": limit}),
            *_collect_evidence(run, first, last),
        ]
        severity = CRITICAL if np.median(within) > 2 * edge("logprob_diff_mean") else WARNING
        findings.append(finding(run, "mismatch", severity, first, last, *evidence))
    return findings


def _collect_evidence(run: RunHistory, first: int, last: int) -> list[Evidence]:
    evidence = []
    for name in ("logprob_diff_max", "improbable_tokens", "logprob_diff_first", "logprob_diff_last"):
        values = run.column(name).window(first, last).values
        if len(values):
            evidence.append(Evidence(name, first, last, {"median": float(np.median(values))}))
    return evidence


def passes_differ(run: RunHistory) -> list[Finding] | str:
    """The ratio is far from 1 while the learning rate is almost zero: two passes of one policy differ."""
    if run.setting("OLD_LOG_PROBS") == "engine":
        raise NotJudged("with OLD_LOG_PROBS=engine the trainer makes one pass; see trainer-engine mismatch")
    rates = run.require_column("actor_lr", 3)
    resting, why = _find_resting_steps(run, rates)
    evidence = []
    for name, limit in (("ppo_clip_ratio", CLIPPED_AT_REST), ("ppo_kl", KL_AT_REST)):
        column = run.column(name)
        at_rest = np.isin(column.steps, resting)
        values, others = np.abs(column.values[at_rest]), np.abs(column.values[~at_rest])
        if not len(values) or np.median(values) <= limit:
            continue
        # With few steps at rest, the ratio must be as large there as while the policy moves.
        if len(values) >= 3 or (len(others) >= 3 and np.median(values) > HARDLY_LESS * np.median(others)):
            numbers = {"median": float(np.median(values)), "limit": limit}
            if len(others):
                numbers["in other steps"] = float(np.median(others))
            evidence.append(Evidence(name, int(column.steps[at_rest][0]), int(column.steps[at_rest][-1]), numbers))
    if not len(resting):
        if lowest := _compare_lowest_rate(run, rates):
            return [finding(run, "passes_differ", CRITICAL, lowest[0].first, int(run.steps[-1]), *lowest)]
        raise NotJudged("no step has an update that is close to zero")
    if not evidence:
        return f"the ratio stays at 1 in {len(resting)} steps {why}"
    peak = max(run.setting_number("LEARNING_RATE") or 0.0, float(rates.values.max()))
    largest = float(rates.values[np.isin(rates.steps, resting)].max())
    rate = Evidence("actor_lr", int(resting[0]), int(resting[-1]), {"largest": largest, "highest": peak})
    onset, last = min(one.first for one in evidence), int(run.steps[-1])
    return [finding(run, "passes_differ", CRITICAL, onset, last, *evidence, rate)]


def _compare_lowest_rate(run: RunHistory, rates: Series) -> list[Evidence]:
    """Return the evidence that a short warmup begins with a ratio as far from 1 as at the peak, or [].

    An update at a fraction of the rate clips at most that fraction of the tokens, and its KL scales with the square.
    Both must be closer to their value at the peak than to what an update would leave.
    """
    peak = float(rates.values.max())
    share = float(rates.values[0]) / peak
    first, at_peak = int(rates.steps[0]), rates.steps[rates.values > 0.9 * peak]
    if share > SHORT_WARM_UP or len(at_peak) < 3:
        return []
    evidence = []
    for name, limit, power in (("ppo_clip_ratio", CLIPPED_AT_REST, 1), ("ppo_kl", KL_AT_REST, 2)):
        column = run.column(name)
        low, high = (np.abs(column.values[np.isin(column.steps, steps)]) for steps in ([first], at_peak))
        if not len(low) or not len(high):
            return []
        usual = float(np.median(high))
        if low[0] <= limit or low[0] < (1 + share**power) / 2 * usual:
            return []
        evidence.append(Evidence(name, first, first, {"value": float(low[0]), "limit": limit, "at the peak": usual}))
    return [*evidence, Evidence("actor_lr", first, first, {"value": float(rates.values[0]), "highest": peak})]


def _find_resting_steps(run: RunHistory, rates: Series) -> tuple[np.ndarray, str]:
    """Return the steps whose ratios no update explains, and a description of them."""
    updates = run.column("optimizer_steps")
    single = updates.steps[updates.values == 1]
    if len(single) >= 3:
        return single, "with one optimizer step"
    peak = max(run.setting_number("LEARNING_RATE") or 0.0, float(rates.values.max()))
    in_warm_up = rates.steps < run.steps[min(run.warm_up, len(run.steps) - 1)]
    low = (rates.values <= NOTHING) | (in_warm_up & (rates.values <= AT_REST * peak))
    if low.sum() < 3:
        low |= in_warm_up & (rates.values <= 2 * AT_REST * peak)
    return rates.steps[low], "at a fifth of the learning rate or less"
