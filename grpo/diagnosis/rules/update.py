"""Is the update sound: a gradient, instability, spikes?

The policy loss is not expected to fall in GRPO, so no rule requires it.
"""

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, WATCH, Evidence, Finding, NotJudged, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.correctness import Fall, fall_of_correctness
from grpo.diagnosis.series import Series, rolling_median, spells
from grpo.metrics.metric_schema import BY_NAME

GROWTH = 3.0  # of the gradient norm, relative to its start
FAR = {"ppo_kl": 10.0, "ppo_clip_ratio": 3.0}  # times the range, for three steps
NEAR = 10  # steps between a symptom and the fall of correctness that it explains
ENOUGH_GROUPS = 60  # without a spread, before the rule reports
LOST_STEPS = 3  # without a gradient although groups have a spread
SPIKE = 10.0  # relative to what is usual
USUAL = 5  # values that tell what is usual


def edge(name: str) -> float:
    """Return the upper end of a metric's healthy range."""
    healthy = BY_NAME[name].healthy
    assert healthy is not None and healthy[1] is not None, name
    return healthy[1]


def magnitude(run: RunHistory, name: str) -> Series:
    """Return a column's absolute values."""
    column = run.column(name)
    return Series(name, column.steps, np.abs(column.values))


def no_gradient(run: RunHistory) -> list[Finding] | str:
    """No step so far has had a gradient, since no group had differing rewards.

    It takes 60 groups: if 1 in 20 groups has a spread, the chance of 60 without one is 5%.
    """
    norm, alike = run.align_columns("grad_norm", "zero_spread_groups", least=LOST_STEPS)
    gradients = norm.values != 0
    if gradients.any():
        return f"the first gradient came in step {norm.steps[np.argmax(gradients)]}"
    if (alike.values < 1).any():
        raise NotJudged("grad_norm is 0 although rewards differ within groups; see lost gradient")
    groups = len(norm) * (run.setting_number("ROLLOUT_BATCH_SIZE") or 8)
    if groups < ENOUGH_GROUPS:
        raise NotJudged(f"only {groups:.0f} groups so far; {ENOUGH_GROUPS} are needed")
    return [_report_no_gradient(run, "no_gradient", int(norm.steps[0]))]


def lost_gradient(run: RunHistory) -> list[Finding] | str:
    """The last steps have no gradient although rewards differ within groups: it does not reach the adapter."""
    first = _first_without_gradient(run)
    if first is None:
        return "no gradient is lost"
    if _is_masked(run, first):
        raise NotJudged("grad_norm is 0 because MASK_TRUNCATED leaves no rollout; see masked gradient")
    return [_report_no_gradient(run, "lost_gradient", first)]


def masked_gradient(run: RunHistory) -> list[Finding] | str:
    """The last steps have no gradient because every rollout that could give one was truncated, and masked for that."""
    first = _first_without_gradient(run)
    if first is None or not _is_masked(run, first):
        return "MASK_TRUNCATED leaves rollouts in the loss" if _masks(run) else "MASK_TRUNCATED is off"
    return [_report_no_gradient(run, "masked_gradient", first)]


def _first_without_gradient(run: RunHistory) -> int | None:
    """Return the first step after the last gradient if enough steps since have had groups with a spread."""
    norm, alike = run.align_columns("grad_norm", "zero_spread_groups", least=LOST_STEPS)
    gradients = np.flatnonzero(norm.values)
    since = int(gradients[-1]) + 1 if len(gradients) else 0
    return int(norm.steps[since]) if (alike.values[since:] < 1).sum() >= LOST_STEPS else None


def _masks(run: RunHistory) -> bool:
    return bool(run.setting_number("MASK_TRUNCATED"))


def _is_masked(run: RunHistory, first: int) -> bool:
    """Say whether the rollouts that were not truncated fit into the groups without a spread, in all steps since."""
    if not _masks(run):
        return False
    cut, alike = (
        column.window(first).values for column in run.align_columns("truncated", "zero_spread_groups", least=1)
    )
    return len(cut) > 0 and bool((1 - cut <= alike + 1e-6).all())


def _report_no_gradient(run: RunHistory, name: str, first: int) -> Finding:
    last = int(run.steps[-1])
    names = ("grad_norm", "zero_spread_groups", *(("truncated",) if _masks(run) else ()), run.training_name)
    means = {one: run.column(one).window(first).values for one in names}
    evidence = [
        Evidence(one, first, last, {"mean": float(values.mean())}) for one, values in means.items() if len(values)
    ]
    return finding(run, name, CRITICAL, first, last, *evidence)


def instability(run: RunHistory) -> list[Finding] | str:
    """KL, clip ratio or gradient norm leave their range for good, and correctness worsens; KL far out is enough."""
    fall = fall_of_correctness(run)
    fallen = [fall.evidence] if fall and fall.is_likely else []
    # Far beyond a range, the policy differs from the sampling policy, whatever learning rate and correctness do.
    for name, times in FAR.items():
        if far := _out_of_range(run, name, times):
            return [finding(run, "instability", CRITICAL, far.first, far.last, far, *fallen)]
    symptoms = [one for one in (*(_out_of_range(run, name) for name in FAR), _gradient_growth(run)) if one]
    explained = [one for one in symptoms if fall and _explains(one, fall)]
    if fall and explained:
        onset = min([fall.onset, *(one.first for one in explained if one.first >= fall.onset - NEAR)])
        last = int(run.steps[-1])
        return [finding(run, "instability", CRITICAL, onset, last, *fallen, *symptoms)]
    if far := _out_of_range(run, "ppo_kl", times=2):
        return [finding(run, "instability", WARNING, far.first, far.last, far)]
    have = [name for name in ("ppo_kl", "ppo_clip_ratio", "grad_norm") if len(run.column(name))]
    if not have:
        raise NotJudged("metrics.jsonl lacks ppo_kl, ppo_clip_ratio and grad_norm")
    alone = "; correctness did not fall with them" if symptoms else ""
    return f"{', '.join(have)}: {len(symptoms)} out of range for several steps{alone}"


def _explains(symptom: Evidence, fall: Fall) -> bool:
    """Say whether a fall goes with a symptom: it is certain, or it is likely and near the symptom."""
    return fall.is_certain or (fall.is_likely and abs(symptom.first - fall.onset) <= NEAR)


def _out_of_range(run: RunHistory, name: str, times: float = 1.0) -> Evidence | None:
    """Return the longest spell of three steps or more beyond `times` the range."""
    column = magnitude(run, name)
    spells_beyond = spells(column.values > times * edge(name), least=3, gap=6)
    if not spells_beyond:
        return None
    first, last = max(spells_beyond, key=lambda spell: spell[1] - spell[0])
    within = column.values[first : last + 1]
    beyond = (within > times * edge(name)).sum()
    return column.evidence({"steps beyond": beyond, "largest": within.max(), "range to": edge(name)}, first, last)


def _gradient_growth(run: RunHistory) -> Evidence | None:
    """Return a lasting growth of the gradient norm over its own start: its scale depends on the model."""
    norm = run.column("grad_norm")
    if len(norm) < 20:
        return None
    usual, smooth = float(np.median(norm.values[:10])), rolling_median(norm.values, 7)
    high = smooth > GROWTH * usual
    if usual <= 0 or not high[-5:].all():
        return None
    first = len(high) - int(np.argmin(high[::-1])) if not high.all() else 0
    return norm.evidence({"before": usual, "last": smooth[-1]}, first)


def spikes(run: RunHistory) -> list[Finding] | str:
    """Single steps have ten times the usual loss or gradient, and far more than the other large ones."""
    names = [("policy_loss_max", "policy_loss"), ("grad_norm_max", "grad_norm")]
    columns = [next((one for one in map(run.column, pair) if len(one) > USUAL), None) for pair in names]
    seen = [one for one in columns if one is not None]
    if not seen:
        have = max(len(run.column(name)) for pair in names for name in pair)
        what = f"only {have} steps; {USUAL + 1} are needed" if have else "policy_loss and grad_norm are missing"
        raise NotJudged(f"{what} in metrics.jsonl")
    found = [(column, at) for column in seen if (at := np.abs(column.values) > _limit(run, column)).any()]
    if not found:
        return ", ".join(
            f"{one.name} at most {number(float(np.abs(one.values).max()))}, "
            f"usually {number(float(np.median(np.abs(one.values))))}"
            for one in seen
        )
    evidence = [_describe_spikes(column, at) for column, at in found]
    many = any(at.sum() >= max(3, 0.05 * len(column)) for column, at in found)
    is_single = len(found) == 1 and found[0][0].name.startswith("grad") and found[0][1].sum() == 1
    fall = fall_of_correctness(run)
    # One gradient is clipped to MAX_GRAD_NORM.
    is_harmless = is_single and not (fall and fall.is_likely)
    severity = CRITICAL if many else WATCH if is_harmless else WARNING
    onset, last = min(one.first for one in evidence), max(one.last for one in evidence)
    return [finding(run, "spikes", severity, onset, last, *evidence)]


def _limit(run: RunHistory, column: Series) -> np.ndarray:
    """Return the size above which each value is a spike; [N].

    The values before it show what is usual. For the first values, the later ones do.

    Steps whose groups all agree have zero loss and no advantages, so they do not tell what is usual. A ratio near 1
    keeps the loss of a token below its advantage, times its log-prob with POLICY_LOSS=cispo. The entropy is the mean of
    that over tokens. A gradient within its healthy range does no harm.
    """
    size = np.abs(column.values)
    # The mean over micro-batches is near zero, so its ratio to the usual says less.
    beyond = 10.0 if column.name == "policy_loss" else 5.0
    if column.name.startswith("grad"):
        least = edge(column.name)
    else:
        advantages = [np.abs(run.column(end).values) for end in ("advantage_min", "advantage_max")]
        least = 2 * max((float(np.median(values[values > 0])) for values in advantages if values.any()), default=0.0)
        if run.setting("POLICY_LOSS") == "cispo" and len(entropy := run.column("entropy")):
            least *= float(np.median(entropy.values))
    limits = np.full(len(size), np.inf)
    for index in np.flatnonzero(size > least):
        others = size[:index][size[:index] > 0]
        if len(others) < USUAL:
            after = size[index + 1 :]
            others = np.concatenate([others, after[after > 0]])
        if len(others) >= USUAL:
            limits[index] = max(SPIKE * float(np.median(others)), beyond * float(np.quantile(others, 0.8)), least)
    return limits


def _describe_spikes(column: Series, at: np.ndarray) -> Evidence:
    size, places = np.abs(column.values), np.flatnonzero(at)
    numbers = {"spikes": at.sum(), "largest": size[at].max(), "usual": np.median(size[~at])}
    return column.evidence(numbers, places[0], places[-1])
