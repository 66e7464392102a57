"""Is the update sound: instability, loss spikes, learning-rate shock, off-policy updates, trainer-engine mismatch.

The policy loss is not expected to fall in GRPO, and no rule asks for it.
"""

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, Evidence, Finding, NotJudged, number
from grpo.diagnosis.history import History
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.rules.learning import held_out_gain
from grpo.diagnosis.series import Series, rolling_median, shift, spells
from grpo.metric_schema import BY_NAME

GROWTH = 3.0  # of the gradient norm, over its start
SPIKE = 10.0  # of the loss, over what is usual
JUMP = 1.5  # of the learning rate in one step
SETTLING = 10  # steps after a jump in which its consequences show


def edge(name: str) -> float:
    """Return the upper end of a metric's healthy range."""
    healthy = BY_NAME[name].healthy
    assert healthy is not None and healthy[1] is not None, name
    return healthy[1]


def _beyond(run: History, name: str) -> tuple[Series, np.ndarray] | None:
    """Return a column by magnitude and where it leaves its healthy range, None without values."""
    column = run.column(name)
    if not len(column):
        return None
    values = np.abs(column.values)
    return Series(name, column.steps, values), values > edge(name)


def instability(run: History) -> list[Finding] | str:
    """KL, clip ratio or gradient norm leave their range for good, and correctness worsens; KL far out is enough."""
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
        raise NotJudged("metrics.jsonl has none of ppo_kl, ppo_clip_ratio, grad_norm")
    change = f", change of correct {number(fall.change)} (z {number(fall.z)})" if fall else ""
    return f"{', '.join(have)}: {len(symptoms)} out of range for long{change}"


def _out_of_range(run: History, name: str, times: float = 1.0, least: int = 3) -> Evidence | None:
    """Return the longest spell of steps that are beyond `times` the range."""
    beyond = _beyond(run, name)
    if beyond is None:
        return None
    column, _ = beyond
    found = spells(column.values > times * edge(name), least, gap=6)
    if not found:
        return None
    first, last = max(found, key=lambda spell: spell[1] - spell[0])
    within = column.values[first : last + 1]
    numbers = {
        "steps beyond": float((within > times * edge(name)).sum()),
        "largest": float(within.max()),
        "range to": edge(name),
    }
    return Evidence(name, int(column.steps[first]), int(column.steps[last]), numbers)


def _gradient_growth(run: History) -> Evidence | None:
    """Return a lasting growth of the gradient norm: its scale depends on the model, so its own start is the measure."""
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


def loss_spikes(run: History) -> list[Finding] | str:
    """Single steps with a loss ten times beyond the usual, and far beyond the other large ones.

    Steps whose groups all agree have a loss of zero, so that the ratio within a step can be large without a reason:
    it counts only with the loss itself.
    """
    name = "policy_loss_max" if len(run.column("policy_loss_max")) >= 20 else "policy_loss"
    loss = run.need(name, 20)
    size = np.abs(loss.values)
    usual, large = float(np.median(size)), float(np.quantile(size, 0.8))
    # The mean over micro-batches is near zero, so that its ratio to the usual says less.
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


def lr_shock(run: History) -> list[Finding] | str:
    """The learning rate jumps after the warm-up, or comes to its peak, and KL, clip ratio or gradients jump with it."""
    rates = run.need("actor_lr", 15)
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
    if run.warm_up and (evidence := _transient(run)):
        return [finding(run, "lr_shock", WARNING, rates.steps[0], evidence[0].last, *evidence)]
    return f"{len(jumps)} jumps of the learning rate after the warm-up" + (", without consequences" if jumps else "")


def _consequences(run: History, step: int) -> list[Evidence]:
    """Return what grew at least threefold in the steps after a jump, over the steps before it."""
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
    return evidence if any(found.metric != "grad_norm" for found in evidence) else []


def _transient(run: History) -> list[Evidence]:
    """Return what is out of range right after the warm-up and settles later to a third."""
    evidence = []
    for name in ("ppo_kl", "ppo_clip_ratio"):
        beyond = _beyond(run, name)
        if beyond is None or len(beyond[0]) < 20:
            continue
        column, out = beyond
        early, late = float(np.median(column.values[:5])), float(np.median(column.values[12:]))
        if out[:SETTLING].sum() >= 4 and early > edge(name) and late < early / 3 and not out[12:].any():
            steps = column.steps[:SETTLING][out[:SETTLING]]
            evidence.append(Evidence(name, int(steps[0]), int(steps[-1]), {"after warm-up": early, "later": late}))
    return evidence


def off_policy(run: History) -> list[Finding] | str:
    """Several optimizer steps a rollout, and clip ratio or KL out of range from early on for most of the run.

    Several optimizer steps by themselves are the recipe here, and no finding.
    """
    updates = run.need("optimizer_steps", 15)
    count = float(np.median(updates.values))
    if count <= 1:
        return "one optimizer step a rollout"
    evidence, seen = [], []
    for name in ("ppo_clip_ratio", "ppo_kl"):
        beyond = _beyond(run, name)
        if beyond is None or len(beyond[0]) < 15:
            continue
        column, out = beyond
        seen.append(f"{name} {number(float(np.median(column.values)))}")
        if out.mean() > 0.6 and out[:15].mean() > 0.5 and out[-10:].mean() > 0.5:
            first = int(np.argmax(out))
            numbers = {
                "median": float(np.median(column.values)),
                "range to": edge(name),
                "share of steps beyond": float(out.mean()),
            }
            evidence.append(Evidence(name, int(column.steps[first]), int(column.steps[-1]), numbers))
    if not seen:
        raise NotJudged("metrics.jsonl has neither ppo_clip_ratio nor ppo_kl for 15 steps after the warm-up")
    if not evidence:
        return f"{number(count)} optimizer steps a rollout, {', '.join(seen)}"
    first = min(found.first for found in evidence)
    evidence.insert(0, Evidence("optimizer_steps", first, int(updates.steps[-1]), {"a rollout": count}))
    return [finding(run, "off_policy", WARNING, first, updates.steps[-1], *evidence)]


def mismatch(run: History) -> list[Finding] | str:
    """Trainer and engine differ in the log-probs of the sampled tokens, beyond the noise of two kernels."""
    column = run.need("logprob_diff_mean", 5)
    values, limit = column.values, edge("logprob_diff_mean")
    if len(values) >= 20:
        # Well below the limit, a lasting fivefold of its own start is a sync that no longer arrives.
        limit = min(limit, max(5 * float(np.median(values[:10])), 0.4 * limit))
    found = spells(values > limit, least=4, gap=1)
    if not found:
        return f"logprob_diff_mean {number(float(np.median(values)))}, at most {number(float(values.max()))}"
    findings = []
    for begin, end in found:
        first, last = int(column.steps[begin]), int(column.steps[end])
        within = values[begin : end + 1]
        evidence = [
            Evidence("logprob_diff_mean", first, last, {"median": float(np.median(within)), "limit": limit}),
            *_more_of_mismatch(run, first, last),
        ]
        severity = CRITICAL if np.median(within) > 2 * edge("logprob_diff_mean") else WARNING
        findings.append(finding(run, "mismatch", severity, first, last, *evidence))
    return findings


def _more_of_mismatch(run: History, first: int, last: int) -> list[Evidence]:
    evidence = []
    for name in ("logprob_diff_max", "improbable_tokens", "logprob_diff_first", "logprob_diff_last"):
        values = run.column(name).window(first, last).values
        if len(values):
            evidence.append(Evidence(name, first, last, {"median": float(np.median(values))}))
    return evidence
