"""Does the learning rate fit: a shock, a collapse at its peak, off-policy updates? The warmup is left out of both."""

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
from grpo.diagnosis.rules.correctness import fall_of_correctness
from grpo.diagnosis.rules.update import edge, magnitude
from grpo.diagnosis.series import trend
from grpo.metrics.metric_schema import BY_NAME

JUMP = 1.5  # factor on the learning rate in one step
SETTLING = 10  # steps after a jump during which its consequences show
EARLY, LATEST = 8, 20  # steps after the warmup during which a drift from the start shows
DRIFTED, DRIFT_Z = 0.4, 3.0  # of the range of KL, and standard errors of its rise
FEW = 5  # steps after the peak within which it explains a fall of correctness


def lr_shock(run: RunHistory) -> list[Finding] | str:
    """The learning rate jumps after the warmup, or reaches its peak, and the policy cannot cope.

    KL, clip ratio or gradients jump with it, or correctness falls within a few steps of the peak.
    """
    if collapse := _collapse_at_peak(run):
        return [collapse]
    has_warm_up, run = run.warm_up > 0, run.after_warm_up
    rates = run.require_column("actor_lr", 15)
    jumps = [
        index
        for index in range(1, len(rates))
        if rates.values[index] > JUMP * rates.values[max(index - 5, 0) : index].max() > 0
    ]
    for index in jumps:
        step = int(rates.steps[index])
        if evidence := _consequences(run, step):
            numbers = {"before": float(rates.values[index - 1]), "after": float(rates.values[index])}
            rise = Evidence("actor_lr", int(rates.steps[index - 1]), step, numbers)
            return [finding(run, "lr_shock", CRITICAL, step, min(step + SETTLING, rates.steps[-1]), rise, *evidence)]
    if has_warm_up and (evidence := _transient(run)):
        return [finding(run, "lr_shock", WARNING, rates.steps[0], evidence[0].last, *evidence)]
    return f"{len(jumps)} jumps of the learning rate after the warmup" + (", without consequences" if jumps else "")


def _collapse_at_peak(run: RunHistory) -> Finding | None:
    """Return a fall of correctness that began in the last steps of the warmup, or shortly after it."""
    rates, fall = run.column("actor_lr"), fall_of_correctness(run)
    is_over = len(run.rows) - run.warm_up > 1  # it has stopped rising
    if not run.warm_up or not len(rates) or not is_over or fall is None or not fall.is_likely:
        return None
    peak = int(run.steps[run.warm_up])
    near = int(run.steps[run.warm_up // 2])  # the rate is half of its peak there
    if not near <= fall.onset <= peak + FEW or _is_paid_for(run, fall.onset):
        return None
    before, after = rates.values[0], rates.values.max()
    rise = Evidence("actor_lr", int(rates.steps[0]), peak, {"first": float(before), "highest": float(after)})
    return finding(run, "lr_shock", CRITICAL, fall.onset, int(run.steps[-1]), rise, fall.evidence)


def _is_paid_for(run: RunHistory, step: int) -> bool:
    """Say whether the reward did not follow correctness up to a step, which would explain the fall."""
    healthy = BY_NAME["reward_correct_correlation"].healthy
    values = run.column("reward_correct_correlation").window(0, step).values
    return len(values) > 0 and healthy is not None and float(np.median(values)) < (healthy[0] or 0.0)


def _consequences(run: RunHistory, step: int) -> list[Evidence]:
    """Return what grew at least threefold in the steps after a jump, relative to the steps before it."""
    evidence = []
    for name, least in (
        ("ppo_kl", 0.4 * edge("ppo_kl")),
        ("ppo_clip_ratio", 0.4 * edge("ppo_clip_ratio")),
        ("grad_norm", 0.0),
    ):
        column = run.column(name)
        before = np.abs(column.window(step - 15, step - 1).values)
        after = np.abs(column.window(step, step + SETTLING).values)
        if len(before) < 5 or len(after) < 3:
            continue
        usual, high = float(np.median(before)), float(np.quantile(after, 0.75))
        if high > 3 * usual and high > float(before.max()) and high > least:
            evidence.append(Evidence(name, step - 15, step + len(after) - 1, {"before": usual, "after": high}))
    # The gradient alone may grow for other reasons.
    return evidence if any(one.metric != "grad_norm" for one in evidence) else []


def _transient(run: RunHistory) -> list[Evidence]:
    """Return what is out of range right after the warmup and later settles to a third."""
    evidence = []
    for name in ("ppo_kl", "ppo_clip_ratio"):
        column = magnitude(run, name)
        if len(column) < 20:
            continue
        out = column.values > edge(name)
        early, late = float(np.median(column.values[:5])), float(np.median(column.values[12:]))
        if out[:SETTLING].sum() >= 4 and early > edge(name) and late < early / 3 and not out[12:].any():
            steps = column.steps[:SETTLING][out[:SETTLING]]
            evidence.append(Evidence(name, int(steps[0]), int(steps[-1]), {"after warmup": early, "later": late}))
    return evidence


def _early_drift(run: RunHistory) -> list[Evidence]:
    """Return evidence that KL rises and correctness, or the score, falls over the first steps after the warmup."""
    if not len(run.rows):
        return []
    end = int(run.steps[min(len(run.steps), LATEST) - 1])
    kl, correct = magnitude(run, "ppo_kl").window(0, end), run.column(run.training_name).window(0, end)
    if min(len(kl), len(correct)) < EARLY:
        return []
    recent, (rise, fall) = float(np.median(kl.values[-4:])), (trend(kl), trend(correct))
    if recent < DRIFTED * edge("ppo_kl") or rise.z < DRIFT_Z or fall.z > -DRIFT_Z / 2:
        return []
    first = int(kl.steps[0])
    return [
        Evidence("ppo_kl", first, end, {"first": float(np.median(kl.values[:3])), "last": recent, "z": rise.z}),
        Evidence(correct.name, first, end, {"change": fall.change, "z": fall.z}),
    ]


def off_policy(run: RunHistory) -> list[Finding] | str:
    """Several optimizer steps per global step, with clip ratio or KL out of range from early on for most of the run.

    Alternatively, the KL grows from the start while correctness, or the score, falls. Several optimizer steps alone
    are the recipe here, and not a finding.
    """
    run = run.after_warm_up
    updates = run.require_column("optimizer_steps", EARLY)
    count = float(np.median(updates.values))
    if count <= 1:
        return "one optimizer step per global step"
    evidence, seen = _early_drift(run), []
    if not evidence:
        run.require_column("optimizer_steps", 15)
    for name in ("ppo_clip_ratio", "ppo_kl"):
        column = magnitude(run, name)
        if len(column) < 15:
            continue
        out = column.values > edge(name)
        seen.append(f"{name} {number(float(np.median(column.values)))}")
        if out.mean() > 0.6 and out[:15].mean() > 0.5 and out[-10:].mean() > 0.5:
            numbers = {"median": np.median(column.values), "range to": edge(name), "share of steps beyond": out.mean()}
            evidence.append(column.evidence(numbers, int(np.argmax(out))))
    if not seen and not evidence:
        raise NotJudged("neither ppo_clip_ratio nor ppo_kl has 15 steps after the warmup")
    if not evidence:
        return f"{number(count)} optimizer steps per global step, {', '.join(seen)}"
    first = min(one.first for one in evidence)
    evidence.insert(0, Evidence("optimizer_steps", first, int(updates.steps[-1]), {"per rollout": count}))
    return [finding(run, "off_policy", WARNING, first, updates.steps[-1], *evidence)]
