"""Diagnoses a run, finished or in progress: lines of its files in, findings out.

Each rule yields what it sees: the finding's name, its severity, the change that shows it, and the numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo.diagnosis.record import RECENT, Change, Record, Series, find_spell
from grpo.diagnosis.thresholds import (
    CRITICAL,
    EVER,
    FALLS,
    LIMITS,
    ONE,
    OUT_OF_RANGE,
    RANGES,
    SEVERAL,
    STALLS,
    WARNING,
    WATCH,
    Limit,
    advise,
)
from grpo.metrics.metric_schema import BY_NAME

SEVERITIES = (CRITICAL, WARNING, WATCH)
Seen = tuple[str, str, Change, str]
SURE, LIKELY = 4.5, 2.0  # standard errors: of a finding, and of the least that is looked at
QUIET = (("ppo_kl", 1e-4), ("ppo_clip_ratio", 1e-3))  # medians of a policy that does not move


@dataclass(frozen=True)
class Finding:
    """One ailment of a run.

    Attributes:
        name: as in docs/tuning.md, or "out_of_range:METRIC".
        tier: of the metric that shows it, see :data:`grpo.metrics.metric_schema.TIERS`.
        severity: "critical", "warning", or "watch": worth a look, no alarm.
        step: the first that shows it.
        value: of the metric.
        text: the numbers.
        remedy: what to change, in the order to try it, with the run's values.
    """

    name: str
    tier: int
    severity: str
    step: int
    value: float
    text: str
    remedy: tuple[str, ...]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    def headline(self) -> str:
        """Return the finding in one line."""
        return f"{self.title} from step {self.step} ({self.severity}): {self.text}"


def limits(run: Record) -> Iterator[Seen]:
    """Metrics that stay out of their limits."""
    for limit in (*LIMITS, *RANGES):
        series = run.column(limit.metric)
        at = _find_outside(series, limit)
        if at is not None and _holds(run, limit, int(series.steps[at])):
            value = float(np.median(series.values[at : at + limit.steps]))
            bound = limit.high if limit.high is not None and value > limit.high else limit.low
            change = Change(limit.metric, int(series.steps[at]), value, value)
            yield limit.finding, limit.severity, change, f"{limit.metric} {value:.3g}, beyond {bound}"


def _find_outside(series: Series, limit: Limit) -> int | None:
    """Return where a metric leaves its limits until now, and is not on its way back."""
    low, high = (-np.inf if limit.low is None else limit.low), (np.inf if limit.high is None else limit.high)
    beyond = np.maximum(np.maximum(low - series.values, series.values - high), 0.0)
    at, half = find_spell(beyond > 0, limit.steps, limit.when == EVER), limit.steps // 2
    recent = beyond[-limit.steps :]
    if at is not None and half > 1:
        early, late = np.median(recent[:half]), np.median(recent[-half:])
        if late < 0.75 * early and early - late > Series("", recent, recent).scatter:
            return None
    return at


def _holds(run: Record, limit: Limit, step: int) -> bool:
    """Say whether the further condition of a limit holds, for a metric outside it since a step."""
    if limit.metric.startswith(("logprob", "vllm")):  # with --pipeline, the engines' policy lacks an update
        is_small = "@" in limit.metric and np.median(run.column("logprob_diff_mean").values[-3:]) <= 0.02
        return not run.number("--pipeline") and not is_small
    if limit.metric == "zero_spread_groups":
        return run.has_room or run.training.values[:6].mean() > 0.9
    if limit.when == FALLS:
        return any(fall.z <= -3 and step <= fall.step + 2 * RECENT for fall in find_falls(run))
    if limit.when == STALLS:
        return _stalls(run, step)
    if limit.when in (SEVERAL, ONE):
        updates = run.column("optimizer_steps").values
        is_own = limit.when == SEVERAL or run.setting("--old_log_probs") != "engine"
        return len(updates) > 0 and (np.median(updates) > 1) == (limit.when == SEVERAL) and is_own
    return True


def _stalls(run: Record, step: int) -> bool:
    """Say whether correctness has not gained since a step."""
    before, since = run.training.between(0, step + 5).values[-2 * RECENT :], run.training.values[-2 * RECENT :]
    gain = float(since.mean() - before.mean()) if len(before) else 0.0
    is_flat = gain < max(0.05, LIKELY * run.training.scatter / np.sqrt(RECENT))
    return len(run.rows) >= 20 and run.has_room and is_flat


def find_falls(run: Record) -> list[Change]:
    """Return the falls of correctness that last until now, in training and held out; noise may explain them."""
    prompts = min(max(run.number("--rollout_batch_size", 8.0), 2.0), 16.0)  # batches differ by more than their prompts
    level = float(np.median(run.held_out.values)) if len(run.held_out) else 0.5
    samples = max(level * (1 - level), run.eval_error) / run.eval_error**2
    falls = [run.training.largest_fall(prompts, (8, 30), 2), run.held_out.largest_fall(samples, (2, 4, 8), 1)]
    return [fall for fall in falls if fall.z <= -LIKELY and -fall.gain >= min(0.1, 0.6 * fall.before)]


def correctness_fall(run: Record) -> Iterator[Seen]:
    """A fall in training, on the held-out problems, or both."""
    falls = sorted(find_falls(run), key=lambda fall: fall.z)
    together = float(np.hypot.reduce([fall.z for fall in falls])) if falls else 0.0
    if together >= 2.5:
        is_worst = len(falls) == 2 or falls[0].after < 0.25 * falls[0].before
        first = min((fall for fall in falls if fall.z <= -SURE or fall is falls[0]), key=lambda fall: fall.step)
        severity = WATCH if together < SURE else CRITICAL if is_worst else WARNING
        yield "correctness_fall", severity, first, "; ".join(map(str, falls))


def lr_shock(run: Record) -> Iterator[Seen]:
    """Correctness falls, even if it recovers, or the policy jumps as the learning rate reaches its peak."""
    if run.peak < 3 or not len(run.column("actor_lr")):
        return
    for fall in find_falls(run.until(run.peak + RECENT)):
        if run.peak / 2 < fall.step <= run.peak + 6:
            yield "lr_shock", WARNING if fall.z <= -SURE else WATCH, fall, f"{fall}; learning rate at its peak"
    for name, high in (("ppo_kl", 0.05), ("ppo_clip_ratio", 0.2)):
        early = run.column(name).between(0, run.peak + 5)
        at = find_spell(np.abs(early.values) > high, 3)
        if at is not None and at > 1:  # not from the start
            yield "lr_shock", WARNING, early.compare(early.steps[at]), f"{name} beyond {high} at the peak of the rate"


def flat_learning(run: Record) -> Iterator[Seen]:
    """Correctness has not moved since the warmup, and neither has the policy, or the groups teach nothing."""
    level = run.training.between(run.peak + 1)
    change, held = level.whole(), run.held_out.whole(run.eval_error)
    is_flat = len(level) >= 40 and abs(change.z) <= 2.5 and run.has_room
    if not is_flat or (len(run.held_out) > 3 and held.z > 2.5):
        return
    spread, entropy = run.column("zero_spread_groups").values, run.column("entropy")
    known = [(np.abs(run.column(name).values), most) for name, most in QUIET]
    is_still = all(np.median(values) <= most for values, most in known if len(values)) and len(entropy) > 20
    is_still &= abs(entropy.whole().gain) <= 0.1 * abs(entropy.whole().before) and run.column("reward").whole().z < 4
    if is_still and (len(level) >= 55 or np.median(run.column("optimizer_steps").values) > 1):  # else KL is 0 anyway
        yield "flat_learning", WARNING, change, f"{change}; KL, clipping and entropy do not move either"
    elif len(spread) and np.median(spread) > 0.85:
        yield "flat_learning", WARNING, change, f"{change}; {np.median(spread):.0%} of the groups have no spread"


def over_fitting(run: Record) -> Iterator[Seen]:
    """Training rises, and the held-out result does not."""
    held, level = run.held_out, run.training.between(run.peak + 1)
    if len(held) > 3 and len(level) >= 20:
        trained, tested = level.whole(), held.whole(run.eval_error)
        errors = [one.gain / one.z for one in (trained, tested) if one.z]
        is_apart = trained.gain - tested.gain > max(0.12, 3.5 * np.hypot.reduce(errors))
        is_held = tested.gain < 0.35 * trained.gain and tested.after < 0.9
        if trained.gain > 0.1 and trained.z > 3 and is_held and is_apart:
            yield "over_fitting", CRITICAL if tested.z < -3 else WARNING, tested, f"{trained}; {tested}"


def reward_hacking(run: Record) -> Iterator[Seen]:
    """The part of the reward that is not correctness rises, and correctness does not."""
    weight = run.number("--correctness_weight", 1.0) if run.has_judge else 1.0
    reward, correct = run.column("reward"), run.column("correct")
    if len(reward) < 16 or not np.array_equal(reward.steps, correct.steps):
        return
    rest = Series("reward beside correctness", reward.steps, reward.values - weight * correct.values)
    rise, paid, right = (one.whole() for one in (rest, reward, correct))
    if rise.z > 5 and rise.gain > 0.05 and paid.gain > 0.02 and right.gain < 0.5 * rise.gain and right.z < 3:
        yield "reward_hacking", CRITICAL if right.z < -3 else WARNING, paid, f"{paid}; {right}"


def doubtful_labels(run: Record) -> Iterator[Seen]:
    """The policy solves held-out problems at least twice as often as training problems."""
    tests = run.held_out.between(run.rows[-1]["step"] - 4 * RECENT)
    steps, held = tests.steps[-3:], tests.values[-3:]
    level = run.training.between(steps[0] - 5, steps[-1] + 5).values if len(held) else held
    if len(level) > 4 and level.any() and run.bottom == 0 and not run.number("--dynamic_filtering"):
        times = 4 if run.number("--eval_temperature", 1.0) < run.number("--temperature", 1.0) else 2
        error = np.hypot(run.eval_error / np.sqrt(len(held)), level.std() / np.sqrt(len(level)))
        change = Change(run.metric, int(run.training.steps[0]), float(held.mean()), float(level.mean()))
        if change.before > times * change.after and -change.gain > max(SURE * error, 0.1):
            text = f"{run.metric} {change.after:.3g} in training, {change.before:.3g} held out"
            yield "doubtful_labels", WARNING, change, text


def gradients(run: Record) -> Iterator[Seen]:
    """Steps without a gradient: never any, or none any more although rewards differ."""
    norms, spread = run.column("grad_norm"), run.column("zero_spread_groups")
    groups, at = len(norms) * run.number("--rollout_batch_size", 8.0), find_spell(norms.values == 0, 3)
    if groups >= 60 and not norms.values.any() and (spread.values >= 1).all():
        yield "no_gradient", CRITICAL, norms.compare(norms.steps[0]), f"no gradient in {groups:.0f} groups"
    elif at is not None and (spread.values[-3:] < 1).all():
        name = "masked_gradient" if run.number("--mask_truncated") else "lost_gradient"
        yield name, CRITICAL, norms.compare(norms.steps[at]), "grad_norm 0 although rewards differ within groups"


def spikes(run: Record) -> Iterator[Seen]:
    """Steps have many times the usual gradient or loss: watched from 5 times, a finding if two have 10 times."""
    for name in ("grad_norm", "grad_norm_max", "policy_loss_max"):
        series = run.column(name)
        size = np.abs(series.values)
        near = [size[max(at - 10, 0) : at + 11] for at in range(len(size))]
        usual = max(np.median(size[size > 0]), 1e-9) if size.any() and len(size) > 5 else np.inf
        times = size / np.array([max(usual, np.median(values)) for values in near])
        at, large = np.flatnonzero(times >= 5), int((times >= 10).sum())
        if len(at):
            worst = int(np.argmax(times))
            text = f"{name} {times[worst]:.0f} times as large as usual in step {series.steps[worst]}; {len(at)} such"
            change = Change(name, int(series.steps[at[0]]), float(usual), float(size[worst]))
            yield "spikes", CRITICAL if large > 2 else WARNING if large > 1 else WATCH, change, text


def judge_drift(run: Record) -> Iterator[Seen]:
    """The quality of right and of wrong rollouts jumps in the same direction from one step to the next."""
    both = [run.column(f"judge_quality_{which}") for which in ("right", "wrong")]
    for step in both[0].steps[3:-2]:
        jumps, leaps = ([series.compare(step, window) for series in both] for window in (6, 1))
        is_same = jumps[0].gain * jumps[1].gain > 0
        is_sudden = all(leap.gain / jump.gain > 0.3 for leap, jump in zip(leaps, jumps, strict=True) if jump.gain)
        if is_same and is_sudden and all(abs(jump.gain) > 0.08 and abs(jump.z) > SURE for jump in jumps):
            yield "judge_drift", WARNING, jumps[0], "; ".join(map(str, jumps))
            return


RULES: tuple[Callable[[Record], Iterator[Seen]], ...] = (
    *(limits, correctness_fall, lr_shock, flat_learning, over_fitting, reward_hacking, doubtful_labels, gradients),
    *(spikes, judge_drift),
)


def diagnose(
    rows: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = (), config: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return the findings of a run, the worst first, then by step; one of each name. Takes milliseconds.

    Args:
        rows, evals: lines of metrics.jsonl and eval.jsonl. What is no finite number, or has no step, is left out.
        config: the content of config.json; without it, remedies lack the present values.
    """
    run, found, explained = Record(rows, evals, config), dict[str, Finding](), set[str]()
    for name, severity, shown, text in (one for rule in RULES if run.rows for one in rule(run)):
        metric = shown.name.partition("@")[0].partition("/")[0].partition("-")[0]
        tier = BY_NAME[metric].tier if metric in BY_NAME else 1
        if name == OUT_OF_RANGE + metric and metric in explained:
            continue
        if severity != WATCH and name not in ("off_policy", "passes_differ"):
            explained.add(metric)
        if name not in found or SEVERITIES.index(severity) < SEVERITIES.index(found[name].severity):
            remedy = advise(run, name, shown.step)
            found[name] = Finding(name, tier, severity, shown.step, shown.after, text, remedy)
    return sorted(found.values(), key=lambda one: (SEVERITIES.index(one.severity), one.step))


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are not only to watch."""
    return [one for one in findings if one.severity != WATCH]


def describe_no_alarm(findings: Iterable[Finding], steps: int) -> str:
    """Return the verdict of a run without alarms. It is not an all-clear while the run is short."""
    watched = ", ".join(one.title for one in findings)
    return (
        "No findings" + (f"; to watch: {watched}" if watched else "") + ("; trends need 20 steps" if steps < 20 else "")
    )


class Monitor:
    """Watches a run in progress: names each alarm once, and again when it becomes critical."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config, self._seen = config, dict[tuple[str, str], int]()

    def new_onsets(self, rows: Sequence[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]] = ()) -> list[Finding]:
        """Return the alarms since the last call, given all lines; again what is back after more than 10 steps."""
        found, now = alarms(diagnose(rows, evals, self._config)), len(rows)
        last = {one: max(self._seen.get((one.name, key), -RECENT) for key in (one.severity, CRITICAL)) for one in found}
        self._seen |= {(one.name, one.severity): now for one in found}
        return [one for one in found if now - last[one] > RECENT]
