"""What happens to the responses: length collapse, entropy that falls or rises, truncation."""

import numpy as np

from grpo.diagnosis.finding import (
    CRITICAL,
    WARNING,
    WATCH,
    Evidence,
    Finding,
    number,
)
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.correctness import fall_of_correctness
from grpo.diagnosis.rules.update import NEAR, edge
from grpo.diagnosis.series import (
    Series,
    rolling_median,
    shift,
    spells,
    trend,
)

SHORT = 0.6  # of the longest stretch of the run
LOW_ENTROPY, HALF_ENTROPY = 0.25, 0.5  # of its start: a finding, and worth a look
FALLING = 0.8  # of its start: the fall has begun
HIGH_ENTROPY = 2.0  # times its start, beside a fall of correctness
LASTING = 3  # values of a rolling median beyond a limit
HALF = 0.5  # share of truncated responses that is a finding whatever it costs
MOST = 0.8  # share that is critical
PRICE = 0.1  # of correctness, lost to truncation
MORE = 0.2  # rise of that share


def _is_lasting(beyond: np.ndarray) -> bool:
    """Say whether the last values are beyond a limit."""
    return len(beyond) >= LASTING and bool(beyond[-LASTING:].all())


def _gain(correct: Series, step: int) -> tuple[float, float]:
    """Return the mean of the last 15 values less that of 13 from `step` on, and the standard error."""
    early, late = correct.window(step, step + 12).values, correct.values[-15:]
    error = (float(early.var()) / len(early) + float(late.var()) / len(late)) ** 0.5
    return float(late.mean() - early.mean()), error


def length_collapse(run: RunHistory) -> list[Finding] | str:
    """Responses fall to at most 60% of their length, without a gain in correctness or in the score."""
    length, correct = run.require_column("response_length", 20), run.require_column(run.training_name, 20)
    smooth = rolling_median(length.values)
    peak = int(np.argmax(smooth[4:])) + 4
    text = f"response_length peaks at {number(smooth[peak])} and ends at {number(smooth[-1])} (medians of 5 steps)"
    if not _is_lasting(smooth < SHORT * smooth[peak]):
        return text
    onset = int(length.steps[int(np.flatnonzero(smooth >= 0.85 * smooth[peak])[-1])])
    gain, error = _gain(correct, onset)
    if gain > max(0.05 * run.width, error) and smooth[-1] > 0.35 * smooth[peak]:
        return f"{text}, while {correct.name} gained {number(gain)}"
    last = int(length.steps[-1])
    numbers = {"longest": smooth[peak], "last": smooth[-1], "share": smooth[-1] / smooth[peak]}
    evidence = [length.evidence(numbers, peak), Evidence(correct.name, onset, last, {"change": gain})]
    severity = CRITICAL if smooth[-1] < 0.4 * smooth[peak] or gain < -0.1 * run.width else WARNING
    return [finding(run, "length_collapse", severity, onset, last, *evidence)]


def entropy_collapse(run: RunHistory) -> list[Finding] | str:
    """Entropy falls to at most a quarter of its start, while correctness or the score stops rising short of mastery.

    A policy that learns the answers also becomes sure of them: that is learning. Half of the start is watched.
    """
    entropy, start, smooth = _entropy(run)
    correct = run.require_column(run.training_name, 15)
    text = f"entropy starts at {number(start)} and ends at {number(smooth[-1])} (medians)"
    if not _is_lasting(smooth < HALF_ENTROPY * start):
        return text
    onset = int(entropy.steps[int(np.flatnonzero(smooth >= HALF_ENTROPY * start)[-1])])
    begin = int(entropy.steps[int(np.flatnonzero(smooth >= FALLING * start)[-1])])
    level = float(correct.values[-15:].mean())
    if run.is_mastered(level) or _has_learned(run, correct, begin, onset):
        return f"{text}, with {correct.name} {number(level)}"
    last = int(entropy.steps[-1])
    evidence = [
        Evidence("entropy", int(entropy.steps[0]), last, {"first": start, "last": float(smooth[-1])}),
        Evidence(correct.name, onset, last, {"last": level}),
    ]
    groups = run.column("zero_spread_groups")
    if len(before := groups.window(0, onset).values) and len(after := groups.window(onset + 1).values):
        numbers = {"before": float(before.mean()), "after": float(after.mean())}
        evidence.append(Evidence("zero_spread_groups", int(groups.steps[0]), last, numbers))
    severity = CRITICAL if smooth[-1] < 0.15 * start else WARNING
    if not _is_lasting(smooth < LOW_ENTROPY * start):
        severity = WATCH
    return [finding(run, "entropy_collapse", severity, onset, last, *evidence)]


def entropy_rise(run: RunHistory) -> list[Finding] | str:
    """Entropy rises to twice its start or more, and correctness falls with it."""
    entropy, start, smooth = _entropy(run)
    text = f"entropy starts at {number(start)} and ends at {number(smooth[-1])} (medians)"
    fall = fall_of_correctness(run)
    if not _is_lasting(smooth > HIGH_ENTROPY * start) or fall is None:
        return text
    begin = int(entropy.steps[int(np.flatnonzero(smooth <= HIGH_ENTROPY**0.5 * start)[-1])])
    onset = fall.onset if 0 <= begin - fall.onset <= NEAR else begin  # both are the same damage
    last = int(run.steps[-1])
    evidence = Evidence("entropy", int(entropy.steps[0]), last, {"first": start, "last": float(smooth[-1])})
    severity = CRITICAL if fall.is_certain else WARNING
    return [finding(run, "entropy_rise", severity, onset, last, evidence, fall.evidence)]


def _entropy(run: RunHistory) -> tuple[Series, float, np.ndarray]:
    """Return the entropy, its level at the start, and its rolling median."""
    entropy = run.require_column("entropy", 15)
    return entropy, float(np.median(entropy.values[:10])), rolling_median(entropy.values)


def _has_learned(run: RunHistory, correct: Series, begin: int, onset: int) -> bool:
    """Say whether correctness, or the score, has gained by more than noise since step `onset`.

    While that is recent, a gain since step `begin`, when the entropy began to fall, also counts.
    """
    if len(correct.window(onset)) >= 15:
        gain, error = _gain(correct, onset)
        return gain > max(0.05 * run.width, 2 * error) or trend(correct.window(onset)).z > 3
    before, after = correct.window(begin - 12, begin).values, correct.window(onset).values
    if not len(before) or not len(after):
        return False
    error = (float(before.var()) / len(before) + float(after.var()) / len(after)) ** 0.5
    return float(after.mean() - before.mean()) > max(0.05 * run.width, 2 * error)


def truncation(run: RunHistory) -> list[Finding] | str:
    """Responses are cut: half of them, or fewer at a high price in correctness, or 0.2 more of them than at first."""
    cut = _select_full_length(run, run.require_column("truncated", 5))
    if not len(cut):
        return "no step has had the full length limit"
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
    """Return the finding that the length limit holds the run back: half the rollouts are cut, or fewer at a high price.

    The price is the gain in correctness if cut rollouts were right as often as uncut ones. It is an upper bound, since
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


def _select_full_length(run: RunHistory, cut: Series) -> Series:
    """Return the steps with the largest allowed response length: a schedule of lengths cuts on purpose."""
    limits, most = run.column("length_limit"), run.setting_number("GENERATE_MAX_LEN")
    if most is None or not len(limits):
        return cut
    kept = np.isin(cut.steps, limits.steps[limits.values >= most])
    return Series(cut.name, cut.steps[kept], cut.values[kept])
