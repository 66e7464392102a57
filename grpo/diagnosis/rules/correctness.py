"""Did correctness fall, in training or on the held-out problems? One test for both.

A score of the user's own reward is tested like a share of right samples, on the scale of the run's scores.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, WATCH, Evidence, Finding, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.series import Series, neighbors
from grpo.run.measure import SCORE

BEYOND_NOISE = 4.5  # standard errors: every split is tested, after every step
EXPECTED = 3.0  # standard errors, where another symptom, or the peak of the learning rate, tells the step beforehand
NOTABLE = 2.0  # standard errors: worth a look
LEAST, SHARE = 0.1, 0.6  # of the scale, or of the former level: smaller falls do not count
PRIOR = 8  # values' worth of weight for the expected sampling noise, beside the observed scatter
WINDOWS = (8, 30)  # values before a fall that give the former level: the shorter one finds a fall after a fast rise
RECENT = 10  # values that give the present level
UNKNOWN_PROMPTS, UNKNOWN_PROBLEMS = 8, 64  # per value, if nothing says
MOST_PROMPTS = 16  # counted at most: batches may differ in difficulty by more than their prompts explain
NEARLY_NOTHING = 0.1  # of the former level: nine of ten right answers are gone
LARGE = 0.5  # of the former level: held-out problems that fall below it need no second witness
TOGETHER = 10  # steps between the falls of two measures that belong to each other, beside the evaluations' distance


@dataclass(frozen=True)
class Fall:
    """A fall of correctness that has not recovered.

    Attributes:
        onset: the first step whose rollouts may show it.
        left: the share of the former level that is left.
        evidence: with the levels, and z in standard errors.
    """

    onset: int
    z: float
    left: float
    evidence: Evidence

    @property
    def is_certain(self) -> bool:
        """Say whether no sampling noise explains it."""
        return self.z <= -BEYOND_NOISE

    @property
    def is_likely(self) -> bool:
        """Say whether noise seldom explains it at a step that is known beforehand."""
        return self.z <= -EXPECTED


def correctness_fall(run: RunHistory) -> list[Finding] | str:
    """Correctness fell by more than sampling explains and has not recovered, in training or on the held-out problems.

    With a reward of the user's own, the score counts. It is critical if both fell, or if little is left. A fall that
    noise may explain is watched.
    """
    if not len(run.held_out):
        run.require_column(run.training_name, 5)
    falls, texts = falls_of_correctness(run)
    if not falls:
        return "; ".join(texts)
    certain = [fall for fall in falls if fall.is_certain] or falls
    onset = falls[0].onset if falls[0].is_likely else min(fall.onset for fall in certain)  # of training, if it tells
    last = int(max(fall.evidence.last for fall in falls))
    return [finding(run, "correctness_fall", _severity(run, falls), onset, last, *(fall.evidence for fall in falls))]


def _severity(run: RunHistory, falls: list[Fall]) -> str:
    if math.hypot(*(fall.z for fall in falls)) < BEYOND_NOISE:  # deviances of independent samples add up
        return WATCH
    is_gone = any(
        fall.is_certain and fall.left <= (LARGE if fall.evidence.metric == run.held_out.name else NEARLY_NOTHING)
        for fall in falls
    )
    return CRITICAL if len(falls) == 2 or is_gone else WARNING


def falls_of_correctness(run: RunHistory) -> tuple[list[Fall], list[str]]:
    """Return the open falls in training and on the held-out problems, and a sentence on each measure that has none.

    Of two falls at different times, only those that are certain count.
    """
    found = [fall_of_training(run), _fall_of_held_out(run)]
    falls = [one for one in found if isinstance(one, Fall)]
    if len(falls) == 2 and not _belong_together(run, *falls):
        falls = [one for one in falls if one.is_certain] or falls[:1]
    return falls, [one for one in found if isinstance(one, str)]


def _belong_together(run: RunHistory, training: Fall, held_out: Fall) -> bool:
    evaluated = run.held_out.steps
    between = int(np.diff(evaluated).max()) if len(evaluated) > 1 else 0
    return abs(training.onset - held_out.onset) <= between + TOGETHER


def fall_of_correctness(run: RunHistory) -> Fall | None:
    """Return the most certain open fall of either measure, watched ones included."""
    falls, _ = falls_of_correctness(run)
    return min(falls, key=lambda fall: fall.z, default=None)


def fall_of_training(run: RunHistory) -> Fall | str:
    """Return the open fall of training correctness, or a sentence on the largest one."""
    prompts = min(run.setting_number("ROLLOUT_BATCH_SIZE") or UNKNOWN_PROMPTS, MOST_PROMPTS)
    return _largest_fall(run.column(run.training_name), run.scale, prompts, least=2)


def _fall_of_held_out(run: RunHistory) -> Fall | str:
    """Return the same of the evaluations, on which one value is enough: each has many rollouts."""
    fall = _largest_fall(run.held_out, run.scale, _held_out_samples(run), least=1)
    if isinstance(fall, str):
        return fall
    good = int(run.held_out.steps[run.held_out.steps < fall.onset][-1])
    # The policy of the last good evaluation drew the rollouts of the step after it.
    return replace(fall, onset=min(good + 2, fall.onset))


def _held_out_samples(run: RunHistory) -> float:
    """Return how many independent samples an evaluation has.

    All evaluations have the same problems, so samples of a problem are independent, unless they are greedy. A score
    has as many as its standard error says: the fewer, the more it differs from problem to problem.
    """
    if run.measure == SCORE and run.held_out_error:
        error = run.held_out_error / run.width
        level = (float(np.median(run.held_out.values)) - run.scale[0]) / run.width
        return max(level * (1 - level), error) / error**2  # at 0, the interval of n samples ends at about 4 / n
    name = "n" if run.setting_number("EVAL_TEMPERATURE") == 0 else "samples"
    counts = [count for row in run.evals if isinstance(count := row.get(name, row.get("n")), int | float) and count > 0]
    return float(np.median(counts)) if counts else UNKNOWN_PROBLEMS


def _largest_fall(series: Series, scale: tuple[float, float], samples: float, least: int) -> Fall | str:
    """Return the most improbable lasting fall of a share of right rollouts.

    Args:
        scale: the ends of the series' scale; its values count as shares of it.
        samples: independent samples in a value, at least.
        least: values after the fall.
    """
    bottom, width = scale[0], scale[1] - scale[0]
    values, n = (series.values - bottom) / width, len(series)
    splits = np.tile(np.arange(2, n - least + 1), len(WINDOWS))
    if not len(splits):
        return f"{series.name} has only {n} values"
    starts = np.maximum(splits - np.repeat(WINDOWS, len(splits) // len(WINDOWS)), 0)
    total = np.concatenate([[0.0], np.cumsum(values)])
    before, after = (total[splits] - total[starts]) / (splits - starts), (total[n] - total[splits]) / (n - splits)
    deviances = np.where(after < before, _deviance(before, splits - starts, after, n - splits), 0.0)
    at = int(np.argmax(deviances))
    index, high, low = int(splits[at]), float(before[at]), float(after[at])
    z = -float(
        (deviances[at] / _dispersion(values[max(index - max(WINDOWS), 0) : index], values[index:], samples)) ** 0.5
    )
    change = min(low - high, 0.0)
    text = f"largest lasting fall of {series.name} was {number(width * change)} (z {number(z)})"
    if change > -min(LEAST, SHARE * high) or z > -NOTABLE:
        return text
    recent = float(values[max(index, n - RECENT) :].mean())
    if recent > (high + low) / 2:
        return f"{text}, and it recovered to {number(bottom + width * recent)}"
    first, last = int(series.steps[starts[at]]), int(series.steps[-1])
    levels = {"before": bottom + width * high, "after": bottom + width * low}
    return Fall(int(series.steps[index]), z, low / high, Evidence(series.name, first, last, {**levels, "z": z}))


def _deviance(before: np.ndarray, n_before: np.ndarray, after: np.ndarray, n_after: np.ndarray) -> np.ndarray:
    """Return twice the log-likelihood that two levels gain over one, with one rollout in each value.

    Unlike a difference in standard errors, it holds for levels near 0, where a few samples tell much.
    """
    level = (before * n_before + after * n_after) / (n_before + n_after)
    gain = n_before * _information(before) + n_after * _information(after)
    return np.maximum(2 * (gain - (n_before + n_after) * _information(level)), 0.0)


def _information(level: np.ndarray) -> np.ndarray:
    inside = np.clip(level, 1e-12, 1 - 1e-12)
    return inside * np.log(inside) + (1 - inside) * np.log(1 - inside)


def _dispersion(before: np.ndarray, after: np.ndarray, samples: float) -> float:
    """Return the variance of one value, relative to that of a single rollout.

    Samples of a prompt are alike, so a value has as many independent samples as prompts, or more. The scatter from
    value to value shows how many. The values after a fall may scatter little because few are right. Neighbors may
    correlate, as the difficulty of the data drifts.
    """
    sides = [_scatter(side, samples) for side in (before, after)]
    alone = (PRIOR / samples + sides[0][0]) / (PRIOR + sides[0][1])
    both = (PRIOR / samples + sides[0][0] + sides[1][0]) / (PRIOR + sides[0][1] + sides[1][1])
    residuals = np.concatenate([before - before.mean(), after - after.mean()])
    r = max(neighbors(residuals) - len(residuals) ** -0.5, 0.0)  # what chance does not explain
    return max(alone, both) * (1 + r) / (1 - r)


def _scatter(values: np.ndarray, samples: float) -> tuple[float, int]:
    """Return the sum of the squared deviations relative to a single rollout's variance, and their number."""
    level = float(values.mean())
    variance = max(level * (1 - level), 0.5 / samples)
    return float((np.diff(values) ** 2).sum() / 2 / variance), len(values) - 1
