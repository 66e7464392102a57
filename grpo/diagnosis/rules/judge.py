"""Is the reward honest: judge outage, judge drift, a reward that depends on the judge?"""

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
from grpo.diagnosis.series import (
    Series,
    shift,
    shift_at,
    sigma,
    spells,
)
from grpo.metrics.metric_schema import BY_NAME

OUTAGE = 0.2  # share of rollouts that no model judged
DRIFT = 0.07  # of the quality given to right and to wrong rollouts
AT_ONCE = 0.6  # share of a drift that happens from one step to the next
LASTING = 8  # values after a jump before it counts as one
NEAR = 4  # values on each side of a jump


def _need_judge(run: RunHistory) -> None:
    if not run.has_judge:
        raise NotJudged("the run has no judge")


def judge_outage(run: RunHistory) -> list[Finding] | str:
    """No model judges a fifth of the rollouts or more for at least three steps, or nearly all of them for two."""
    _need_judge(run)
    failed = run.require_column("judge_failed", 3)
    outages = spells(failed.values > OUTAGE, least=3, gap=1)
    outages += [spell for spell in spells(failed.values > 0.8, least=2, gap=0) if not _is_inside(spell, outages)]
    if not outages:
        return f"judge_failed at most {number(float(failed.values.max()))}"
    findings = []
    for begin, end in sorted(outages):
        within = failed.values[begin : end + 1]
        severity = CRITICAL if within.mean() > 0.5 else WARNING
        evidence = failed.evidence({"mean": within.mean(), "largest": within.max()}, begin, end)
        findings.append(finding(run, "judge_outage", severity, evidence.first, evidence.last, evidence))
    return findings


def _is_inside(spell: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(begin <= spell[0] and spell[1] <= end for begin, end in others)


def judge_drift(run: RunHistory) -> list[Finding] | str:
    """The quality given to right and to wrong rollouts jumps in the same direction, from one step to the next.

    A policy that writes better moves both slowly. A policy that flatters the judge moves the wrong ones. Neither jumps.
    """
    _need_judge(run)
    right, wrong = run.align_columns("judge_quality_right", "judge_quality_wrong", least=2 * NEAR + LASTING)
    least = DRIFT if len(right) >= 20 + LASTING else 3 * DRIFT  # few steps say little about what is usual
    both = (right.values + wrong.values) / 2
    jumps = [_jump(both, sign) for sign in (1, -1)]
    index, jump, z = max(jumps, key=lambda jump: abs(jump[2]))
    levels = [_measure_sides(column.values, index) for column in (right, wrong)]
    changes = [after - before for before, after in levels]
    text = f"largest jump of the quality was {number(jump)} at step {right.steps[index]}"
    same_way = all(change * jump > 0 for change in changes)
    if abs(z) < 5 or not same_way or min(map(abs, changes)) < least:
        return text
    lasting = shift_at(both, index, window=20).change
    near = range(max(index - 2, 2), min(index + 3, len(both) - 1))
    at_once = max(float(both[i : i + 2].mean() - both[i - 2 : i].mean()) / lasting for i in near)
    if lasting * jump < 0 or abs(lasting) < 0.5 * abs(jump):
        return f"{text}; it did not last"
    if at_once < AT_ONCE:
        return f"{text}; it took several steps, as changes of the policy do"
    step, last = int(right.steps[index]), int(right.steps[-1])
    evidence = [
        column.evidence({"before": before, "after": after}, max(index - 10, 0))
        for column, (before, after) in zip((right, wrong), levels, strict=True)
    ]
    evidence += _fallbacks(run.column("judge_fallbacks"), step)
    return [finding(run, "judge_drift", CRITICAL if abs(jump) > 0.25 else WARNING, step, last, *evidence)]


def _jump(values: np.ndarray, sign: int) -> tuple[int, float, float]:
    """Return (index, size, z) of the largest step between two neighbors, judged by the values around it.

    The size is the difference of the medians of `NEAR` values on each side, less the same difference elsewhere: a ramp
    has the same everywhere.
    """
    n = len(values)
    splits = np.arange(NEAR, n - LASTING + 1)
    windows = np.lib.stride_tricks.sliding_window_view(values, NEAR)
    medians = np.median(windows, axis=1)
    steps = medians[splits] - medians[splits - NEAR]
    best = int(np.argmax(sign * steps))
    far = np.abs(splits - splits[best]) > NEAR
    usual = steps[far] if far.any() else np.zeros(1)
    noise = sigma(np.diff(values)) / 2**0.5
    slope = float(np.median(usual))
    error = max(noise * 1.25 * (2 / NEAR) ** 0.5, sigma(usual), 1e-6)
    return int(splits[best]), float(steps[best]), float(steps[best] - slope) / error


def _measure_sides(values: np.ndarray, index: int) -> tuple[float, float]:
    return float(np.median(values[max(index - 10, 0) : index])), float(np.median(values[index : index + 10]))


def _fallbacks(column: Series, step: int) -> list[Evidence]:
    before, after = column.window(step - 10, step - 1).values, column.window(step, step + 9).values
    if not len(before) or not len(after) or abs(after.mean() - before.mean()) < 0.1:
        return []
    numbers = {"before": float(before.mean()), "after": float(after.mean())}
    return [Evidence(column.name, int(step - 10), int(step + 9), numbers)]


def judge_dependent(run: RunHistory) -> list[Finding] | str:
    """Reward and correctness hardly correlate over at least 20 steps: the judge decides.

    Steps in which nearly all rollouts are right, or wrong, have nothing to correlate and do not count.
    """
    _need_judge(run)
    correlation, correct = run.align_columns("reward_correct_correlation", "correct", least=20)
    mixed = (correct.values > 0.05) & (correct.values < 0.95)
    values, steps = correlation.values[mixed], correlation.steps[mixed]
    if len(values) < 20:
        raise NotJudged(f"only {len(values)} steps have both right and wrong rollouts; 20 are needed")
    healthy = BY_NAME["reward_correct_correlation"].healthy
    assert healthy is not None and healthy[0] is not None
    low = healthy[0]
    recent = values[-20:]
    text = f"correlation of reward and correctness is {number(float(np.median(recent)))} over the last 20 steps"
    error = 1.25 * float(np.std(recent)) / len(recent) ** 0.5
    if np.median(recent) + 2 * error >= low:
        return text
    fall = shift(values, -1)
    begins_low = np.median(values[:10]) < low
    onset = int(steps[0] if begins_low or fall is None else steps[fall.index])
    numbers = {"median of the last 20": float(np.median(recent)), "range from": low}
    evidence = Evidence("reward_correct_correlation", onset, int(steps[-1]), numbers)
    severity = CRITICAL if np.median(recent) < 0.25 else WARNING
    return [finding(run, "judge_dependent", severity, onset, steps[-1], evidence)]
