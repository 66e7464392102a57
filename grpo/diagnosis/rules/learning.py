"""Is the run learning what it should: flat learning, over-fitting, reward hacking?"""

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
    Shift,
    shift,
    shift_at,
    trend,
)
from grpo.run.measure import EXACT_MATCH

DEAD_GROUPS = 0.85  # share of groups without spread that leaves too little to learn from


def flat_learning(run: RunHistory) -> list[Finding] | str:
    """Correctness, or the score, does not rise, and the policy hardly moves or its groups have no spread.

    Neither alone is a finding: noise hides a slow rise, and a policy may move while nothing rises for some time.
    """
    run = run.after_warm_up
    correct = run.require_column(run.training_name, 40)
    rise, level = trend(correct), float(np.median(correct.values[-20:]))
    if rise.z > 2 or run.is_mastered(level) or _has_held_out_gain(run, 0):
        change = f"changed by {number(rise.change)} (z {number(rise.z)})"
        return f"{correct.name} is {number(level)} in the last steps, {change}"
    if rise.z < -3:
        return f"{correct.name} falls; see correctness fall"
    evidence = [_change(correct, rise.change, rise.z)]
    dead = run.column("zero_spread_groups")
    if len(dead) >= 20 and np.median(dead.values) > DEAD_GROUPS:
        evidence.append(_level(dead))
    else:
        still = _find_stillness(run)
        if still is None:
            return f"{correct.name} is flat (z {number(rise.z)}), but the policy moves"
        evidence += still
    return [finding(run, "flat_learning", WARNING, correct.steps[0], correct.steps[-1], *evidence)]


def _find_stillness(run: RunHistory) -> list[Evidence] | None:
    """Return the evidence that the policy does not move; None if something shows that it does.

    Raises:
        NotJudged: if no column can tell.
    """
    evidence = []
    updates = run.column("optimizer_steps")
    # With one optimizer step per rollout the ratio is 1 by construction: neither says anything.
    if not len(updates) or np.median(updates.values) > 1:
        for name, least in (("ppo_kl", 1e-4), ("ppo_clip_ratio", 1e-3)):
            column = run.column(name)
            if len(column) < 20:
                continue
            if np.median(np.abs(column.values)) > least:
                return None
            evidence.append(_level(column))
    length, reward = run.column("response_length"), run.column("reward")
    if len(length) >= 20 and abs(trend(length).change) > 0.25 * np.median(length.values):
        return None
    if len(reward) >= 20 and trend(reward).z > 4:  # it learns something, even if not correctness
        return None
    entropy = run.column("entropy")
    if len(entropy) >= 20:
        drift, level = trend(entropy), float(np.median(entropy.values))
        if abs(drift.change) > 0.1 * level:
            return None
        evidence.append(_change(entropy, drift.change, drift.z))
    if not evidence or (len(evidence) == 1 and len(entropy) < 60):
        raise NotJudged(
            f"{run.training_name} is flat so far, but there are too few numbers to tell whether the policy moves"
        )
    return evidence


def _level(column: Series) -> Evidence:
    return column.evidence({"median": np.median(column.values)})


def _change(column: Series, change: float, z: float) -> Evidence:
    return column.evidence({"median": np.median(column.values), "change": change, "z": z})


def _has_held_out_gain(run: RunHistory, from_step: int) -> bool:
    gain = measure_held_out_gain(run, from_step)
    return gain is not None and gain.change > 0.03 * run.width and gain.z > 2.5


def measure_held_out_gain(run: RunHistory, from_step: int) -> Shift | None:
    """Return how exact match or score changed from the first to the last evaluations at `from_step` or later.

    The problems are the same each time, so the error comes from sampling and from the evaluations' own scatter. None
    for fewer than 4 evaluations.
    """
    held_out = run.held_out.window(from_step)
    n = len(held_out)
    if n < 4:
        return None
    part = max(n // 3, 2)
    first, last = held_out.values[:part], held_out.values[-part:]
    scatter = float(np.std(np.diff(held_out.values))) / 2**0.5
    error = max(scatter, run.held_out_error, 1e-6) * (2 / part) ** 0.5
    change = float(last.mean() - first.mean())
    return Shift(n - part, float(first.mean()), float(last.mean()), change / error)


def over_fitting(run: RunHistory) -> list[Finding] | str:
    """Correctness, or the score, rises clearly on the training set, but not on the held-out set."""
    run = run.after_warm_up
    correct, held_out = run.require_column(run.training_name, 40), run.held_out
    gain = measure_held_out_gain(run, 0)
    if gain is None:
        raise NotJudged(f"only {len(held_out)} evaluations; 4 are needed")
    train = _train_gain(correct, held_out)
    error = abs(gain.change / gain.z) if gain.z else run.held_out_error
    noise = abs(train.change / train.z) if train.z else 0.0
    apart = train.change - gain.change
    z = apart / max((error**2 + noise**2) ** 0.5, 1e-6)
    rises = train.change > 0.12 * run.width and trend(correct).z > 3
    held_back = gain.change < 0.35 * train.change and gain.z < 2.5
    if not (rises and held_back and apart > 0.12 * run.width and z > 3.5):
        gains = f"{number(train.change)} in {correct.name}, {number(gain.change)} in {run.held_out_name}"
        return f"change from the first to the last evaluations: {gains}"
    split = shift(held_out.values, -1, least=2)
    worse = split is not None and split.change < -0.05 * run.width and split.z < -3
    first, last = int(held_out.steps[0]), int(held_out.steps[-1])
    evidence = (
        Evidence(correct.name, int(correct.steps[0]), last, {"first": train.before, "last": train.after}),
        Evidence(held_out.name, first, last, {"first": gain.before, "last": gain.after, "z of the gap": z}),
    )
    onset = _find_half_way(correct, train.before, train.after)
    return [finding(run, "over_fitting", CRITICAL if worse else WARNING, onset, max(onset, last), *evidence)]


def _train_gain(correct: Series, held_out: Series) -> Shift:
    """Return how correctness or the score changed over the steps that the first and the last evaluations represent."""
    part = max(len(held_out) // 3, 2)
    early = correct.window(0, int(held_out.steps[part - 1])).values
    late = correct.window(int(held_out.steps[-part])).values
    if len(early) < 5:
        early = correct.values[:10]
    if len(late) < 5:
        late = correct.values[-10:]
    noise = float(np.std(np.diff(correct.values))) / 2**0.5 * (1 / len(early) + 1 / len(late)) ** 0.5
    change = float(late.mean() - early.mean())
    return Shift(len(correct) - len(late), float(early.mean()), float(late.mean()), change / max(noise, 1e-6))


def _find_half_way(series: Series, start: float, end: float) -> int:
    """Return the first step at which a mean over 10 values has gone half way from `start` to `end`."""
    means = np.convolve(series.values, np.ones(10) / 10, mode="valid")
    passed = np.flatnonzero((means - start) * np.sign(end - start) >= abs(end - start) / 2)
    return int(series.steps[passed[0] + 5]) if len(passed) else int(series.steps[0])


def reward_hacking(run: RunHistory) -> list[Finding] | str:
    """The reward's other terms raise it, while correctness stays or falls."""
    reward, correct = run.align_columns("reward", "correct", least=20)
    # Without a judge, the default reward function pays for correctness alone.
    weight = run.setting_number("CORRECTNESS_WEIGHT") if run.has_judge else None
    beside = Series("reward", reward.steps, reward.values - (weight or 1.0) * correct.values)
    rise = shift(beside.values, 1)
    if rise is None:
        raise NotJudged(f"only {len(beside)} steps; 20 are needed")
    paid, right = shift_at(reward.values, rise.index), shift_at(correct.values, rise.index)
    text = f"reward {number(paid.change)}, correct {number(right.change)} around step {beside.steps[rise.index]}"
    apart = rise.z > 5 and rise.change > 0.05
    near = correct.values[max(rise.index - 8, 0) : rise.index + 2].mean()  # earlier learning does not count
    # With another weight, the rest seems to rise when correctness falls.
    is_unclear = weight is None and paid.change < 0.02
    # If the policy learns, the quality rises with correctness, by a fraction of it.
    if not apart or is_unclear or min(right.after - near, right.change) > rise.change:
        return f"the reward does not rise without correctness: {text}"
    # A score is the reward itself, so it says nothing about being right.
    if run.measure == EXACT_MATCH and _has_held_out_gain(run, int(beside.steps[rise.index]) - 10):
        return f"{run.held_out_name} rises with the reward: {text}"
    onset, last = int(beside.steps[rise.index]), int(beside.steps[-1])
    first = int(beside.steps[max(rise.index - 30, 0)])
    evidence = [
        Evidence("reward", first, last, {"before": paid.before, "after": paid.after, "z": paid.z}),
        Evidence("correct", first, last, {"before": right.before, "after": right.after, "z": right.z}),
    ]
    for name in ("judge_quality_wrong", "high_reward_wrong", "judge_quality"):
        if len(column := run.column(name)) >= 20:
            before, after = column.window(first, onset - 1).values, column.window(onset).values
            if len(before) and len(after):
                numbers = {"before": float(before.mean()), "after": float(after.mean())}
                evidence.append(Evidence(name, first, last, numbers))
    severity = CRITICAL if right.change < -0.05 and right.z < -3 else WARNING
    return [finding(run, "reward_hacking", severity, onset, last, *evidence)]
