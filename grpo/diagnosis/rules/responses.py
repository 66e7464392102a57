"""What happens to the responses: length collapse, entropy collapse, truncation."""

import numpy as np

from grpo.diagnosis.finding import (
    CRITICAL,
    WARNING,
    Evidence,
    Finding,
    number,
)
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.learning import MASTERED
from grpo.diagnosis.rules.update import edge
from grpo.diagnosis.series import (
    Series,
    rolling_median,
    shift,
    spells,
    trend,
)

SHORT = 0.6  # of the longest stretch of the run
LOW_ENTROPY = 0.25  # of its start
HALF = 0.5  # share of truncated responses that is a finding whatever it costs
MOST = 0.8  # share that is critical
PRICE = 0.1  # of correctness, lost to truncation
MORE = 0.2  # rise of that share


def _low_since(smooth: np.ndarray, limit: float) -> int | None:
    """Return the index from which a smoothed series stays below `limit` to its end, for at least 5 values."""
    above = np.flatnonzero(smooth >= limit)
    first = int(above[-1]) + 1 if len(above) else 0
    return first if len(smooth) - first >= 5 else None


def _gain(correct: Series, step: int) -> tuple[float, float]:
    """Return the mean of correctness over the last 15 values less that of 13 from `step` on, and its standard error."""
    early, late = correct.window(step, step + 12).values, correct.values[-15:]
    error = (float(early.var()) / len(early) + float(late.var()) / len(late)) ** 0.5
    return float(late.mean() - early.mean()), error


def length_collapse(run: RunHistory) -> list[Finding] | str:
    """Responses fall to at most 60% of their length, without a gain in correctness."""
    length, correct = run.need("response_length", 20), run.need("correct", 20)
    smooth = rolling_median(length.values)
    peak = int(np.argmax(smooth[4:])) + 4
    begin = _low_since(smooth, SHORT * smooth[peak])
    text = f"response_length peaks at {number(smooth[peak])} and ends at {number(smooth[-1])} (medians of 5 steps)"
    if begin is None:
        return text
    onset = int(length.steps[int(np.flatnonzero(smooth >= 0.85 * smooth[peak])[-1])])
    gain, error = _gain(correct, onset)
    if gain > max(0.05, error) and smooth[-1] > 0.35 * smooth[peak]:
        return f"{text}, while correct gained {number(gain)}"
    last = int(length.steps[-1])
    numbers = {"longest": float(smooth[peak]), "last": float(smooth[-1]), "share": float(smooth[-1] / smooth[peak])}
    evidence = [Evidence("response_length", int(length.steps[peak]), last, numbers)]
    evidence.append(Evidence("correct", onset, last, {"change": gain}))
    severity = CRITICAL if smooth[-1] < 0.4 * smooth[peak] or gain < -0.1 else WARNING
    return [finding(run, "length_collapse", severity, onset, last, *evidence)]


def entropy_collapse(run: RunHistory) -> list[Finding] | str:
    """Entropy falls to at most a quarter of its start, while correctness stops rising short of mastery.

    A policy that learns the answers also becomes sure of them: that is learning.
    """
    entropy, correct = run.need("entropy", 20), run.need("correct", 20)
    start, smooth = float(np.median(entropy.values[:10])), rolling_median(entropy.values)
    begin = _low_since(smooth, LOW_ENTROPY * start)
    text = f"entropy starts at {number(start)} and ends at {number(smooth[-1])} (medians)"
    if begin is None:
        return text
    onset = int(entropy.steps[int(np.flatnonzero(smooth >= 0.5 * start)[-1])])
    if len(correct.window(onset)) < 15:
        return f"{text}, too recently to tell the effect on correct"
    (gain, error), level = _gain(correct, onset), float(correct.values[-15:].mean())
    if level > MASTERED or gain > max(0.05, 2 * error) or trend(correct.window(onset)).z > 3:
        return f"{text}, with correct {number(level)}"
    last = int(entropy.steps[-1])
    evidence = [
        Evidence("entropy", int(entropy.steps[0]), last, {"first": start, "last": float(smooth[-1])}),
        Evidence("correct", onset, last, {"last": level, "change": gain}),
    ]
    groups = run.column("zero_spread_groups")
    if len(groups):
        before, after = groups.window(0, onset).values, groups.window(int(entropy.steps[begin])).values
        if len(before) and len(after):
            numbers = {"before": float(before.mean()), "after": float(after.mean())}
            evidence.append(Evidence("zero_spread_groups", int(groups.steps[0]), last, numbers))
    severity = CRITICAL if smooth[-1] < 0.15 * start else WARNING
    return [finding(run, "entropy_collapse", severity, onset, last, *evidence)]


def truncation(run: RunHistory) -> list[Finding] | str:
    """Responses are cut: half of them, or fewer at a high price in correctness, or 0.2 more of them than at first."""
    cut = _at_full_length(run, run.need("truncated", 5))
    if bottleneck := _bottleneck(run, cut):
        return [bottleneck]
    if len(cut) < 20:
        return f"truncated {number(float(np.median(cut.values)))}"
    start, smooth = float(np.median(cut.values[:10])), rolling_median(cut.values, 7)
    text = f"truncated starts at {number(start)} and ends at {number(smooth[-1])} (medians)"
    high = smooth > start + MORE
    if not high[-4:].all() or smooth[-1] <= 0.3 or (rise := shift(cut.values, 1)) is None or rise.z < 4:
        return text
    rising = np.flatnonzero(smooth <= start + MORE / 2)
    onset, last = int(cut.steps[rising[-1] if len(rising) else 0]), int(cut.steps[-1])
    evidence = Evidence("truncated", int(cut.steps[0]), last, {"first": start, "last": float(smooth[-1])})
    return [finding(run, "truncation", WARNING, onset, last, evidence)]


def _bottleneck(run: RunHistory, cut: Series) -> Finding | None:
    """Return the finding that the length limit holds the run back: half the samples are cut, or fewer at a high price.

    The price is the gain in correctness if cut samples were right as often as uncut ones. It is an upper bound, since
    hard problems take longer.
    """
    limit = edge("truncated")
    cut_spells = spells(cut.values > limit, least=5, gap=1)
    if not cut_spells or cut_spells[-1][1] != len(cut) - 1:
        return None
    first, last = int(cut.steps[cut_spells[-1][0]]), int(cut.steps[-1])
    share = float(np.median(cut.window(first, last).values))
    evidence = [Evidence("truncated", first, last, {"median": share, "range to": limit})]
    whole, correct = (run.column(name).window(first, last).values for name in ("correct_whole", "correct"))
    lost = 0.0
    if len(whole) and len(correct):
        numbers = {"correct_whole": float(np.median(whole)), "correct": float(np.median(correct))}
        lost = numbers["correct_whole"] - numbers["correct"]
        if lost > 0:
            numbers["lost by the cut, at most"] = lost
        evidence.append(Evidence("correct", first, last, numbers))
    if share <= HALF and lost <= PRICE:
        return None
    severity = CRITICAL if share > MOST or lost > 2 * PRICE else WARNING
    return finding(run, "truncation", severity, first, last, *evidence)


def _at_full_length(run: RunHistory, cut: Series) -> Series:
    """Return the steps with the largest allowed response length: a schedule of lengths cuts on purpose."""
    limits, most = run.column("length_limit"), run.setting_number("GENERATE_MAX_LEN")
    if most is None or not len(limits):
        return cut
    kept = np.isin(cut.steps, limits.steps[limits.values >= most])
    return Series(cut.name, cut.steps[kept], cut.values[kept])
