"""Is the update sound: instability, loss spikes?

The policy loss is not expected to fall in GRPO, so no rule requires it.
"""

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, Evidence, Finding, NotJudged, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.correctness import fall_of_correctness
from grpo.diagnosis.rules.learning import held_out_gain
from grpo.diagnosis.series import Series, rolling_median, shift, spells
from grpo.metrics.metric_schema import BY_NAME

GROWTH = 3.0  # of the gradient norm, relative to its start
FAR = {"ppo_kl": 10.0, "ppo_clip_ratio": 3.0}  # times the range, for three steps
ENOUGH_GROUPS = 60  # without a spread, before the rule reports
SPIKE = 10.0  # of the loss, relative to what is usual


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
    norm, alike = run.together("grad_norm", "zero_spread_groups", least=3)
    gradients = norm.values != 0
    if gradients.any():
        return f"the first gradient came in step {norm.steps[np.argmax(gradients)]}"
    if (alike.values < 1).any():
        raise NotJudged("grad_norm is 0 although rewards differ within groups")
    groups = len(norm) * (run.setting_number("ROLLOUT_BATCH_SIZE") or 8)
    if groups < ENOUGH_GROUPS:
        raise NotJudged(f"only {groups:.0f} groups so far; {ENOUGH_GROUPS} are needed")
    first, last = int(norm.steps[0]), int(norm.steps[-1])
    evidence = [Evidence(column.name, first, last, {"in every step": column.values[0]}) for column in (norm, alike)]
    if len(correct := run.column("correct")):
        evidence.append(Evidence("correct", first, last, {"mean": float(correct.values.mean())}))
    return [finding(run, "no_gradient", CRITICAL, first, last, *evidence)]


def instability(run: RunHistory) -> list[Finding] | str:
    """KL, clip ratio or gradient norm leave their range for good, and correctness worsens; KL far out is enough."""
    # Far beyond a range, the policy differs from the sampling policy, whatever learning rate and correctness do.
    for name, times in FAR.items():
        if far := _out_of_range(run, name, times):
            fallen = fall_of_correctness(run)
            why = [far] if isinstance(fallen, str) else [far, fallen.evidence]
            return [finding(run, "instability", CRITICAL, far.first, far.last, *why)]
    correct = run.need("correct", 20)
    fall = shift(correct.values, -1)
    worse = fall is not None and fall.z < -4.5 and fall.change < -min(0.1, 0.6 * fall.before)
    onset = int(correct.steps[fall.index]) if fall is not None and worse else 0
    held_out = held_out_gain(run, 0)
    symptoms = [
        evidence for evidence in (_out_of_range(run, "ppo_kl"), _out_of_range(run, "ppo_clip_ratio")) if evidence
    ]
    if growth := _gradient_growth(run):
        symptoms.append(growth)
    if worse and symptoms:
        assert fall is not None
        evidence = [
            Evidence("correct", int(correct.steps[max(fall.index - 30, 0)]), int(correct.steps[-1]),
                     {"before": fall.before, "after": fall.after, "z": fall.z}),
            *symptoms,
        ]  # fmt: skip
        if held_out is not None and held_out.change < 0:
            steps = run.held_out.steps
            numbers = {"first": held_out.before, "last": held_out.after, "z": held_out.z}
            evidence.append(Evidence("exact_match", int(steps[0]), int(steps[-1]), numbers))
        onset = min([onset, *(symptom.first for symptom in symptoms)])
        return [finding(run, "instability", CRITICAL, onset, correct.steps[-1], *evidence)]
    if far := _out_of_range(run, "ppo_kl", times=2, least=5):
        return [finding(run, "instability", WARNING, far.first, far.last, far)]
    have = [name for name in ("ppo_kl", "ppo_clip_ratio", "grad_norm") if len(run.column(name))]
    if not have:
        raise NotJudged("metrics.jsonl lacks ppo_kl, ppo_clip_ratio and grad_norm")
    change = f", change of correct {number(fall.change)} (z {number(fall.z)})" if fall else ""
    return f"{', '.join(have)}: {len(symptoms)} out of range for several steps{change}"


def _out_of_range(run: RunHistory, name: str, times: float = 1.0, least: int = 3) -> Evidence | None:
    """Return the longest spell of steps beyond `times` the range."""
    column = magnitude(run, name)
    spells_beyond = spells(column.values > times * edge(name), least, gap=6)
    if not spells_beyond:
        return None
    first, last = max(spells_beyond, key=lambda spell: spell[1] - spell[0])
    within = column.values[first : last + 1]
    numbers = {
        "steps beyond": float((within > times * edge(name)).sum()),
        "largest": float(within.max()),
        "range to": edge(name),
    }
    return Evidence(name, int(column.steps[first]), int(column.steps[last]), numbers)


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
    return Evidence(
        "grad_norm", int(norm.steps[first]), int(norm.steps[-1]), {"before": usual, "last": float(smooth[-1])}
    )


def loss_spikes(run: RunHistory) -> list[Finding] | str:
    """Single steps with a loss ten times the usual, and far beyond the other large ones.

    Steps whose groups all agree have zero loss, so the ratio within a step can be large for no reason. It counts only
    together with the loss itself.
    """
    name = "policy_loss_max" if len(run.column("policy_loss_max")) >= 20 else "policy_loss"
    loss = run.need(name, 20)
    size = np.abs(loss.values)
    usual, large = float(np.median(size)), float(np.quantile(size, 0.8))
    # The mean over micro-batches is near zero, so its ratio to the usual says less.
    limit = max(SPIKE * usual, (5 if name == "policy_loss_max" else 10) * large)
    advantage = [np.abs(run.column(end).values) for end in ("advantage_min", "advantage_max")]
    if all(len(values) for values in advantage):
        # A ratio near 1 keeps the loss of a token below its advantage.
        limit = max(limit, 2 * float(max(np.median(values) for values in advantage)))
    high = size > limit
    if not high.any():
        return f"{name} at most {number(float(size.max()))}, usually {number(usual)}"
    steps = loss.steps[high]
    numbers = {"spikes": float(high.sum()), "largest": float(size.max()), "usual": usual}
    evidence = [Evidence(name, int(steps[0]), int(steps[-1]), numbers)]
    norm = run.column("grad_norm_max")
    if len(norm) and (at := np.isin(norm.steps, steps)).any():
        numbers = {"at the spikes": float(norm.values[at].max()), "usual": float(np.median(norm.values))}
        evidence.append(Evidence("grad_norm_max", int(steps[0]), int(steps[-1]), numbers))
    severity = CRITICAL if high.sum() >= max(3, 0.05 * len(high)) else WARNING
    return [finding(run, "loss_spikes", severity, steps[0], steps[-1], *evidence)]
