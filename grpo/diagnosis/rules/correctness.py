"""Did correctness fall: by a shift of its mean, or to nearly nothing?"""

from dataclasses import dataclass, replace

import numpy as np

from grpo.diagnosis.finding import CRITICAL, WARNING, Evidence, Finding, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.series import Series, Shift, chance_of_so_few, shift

BEYOND_NOISE = 4.5  # standard errors of a fall: every split is tested, after every step
PRIOR = 4  # steps' worth of weight for the expected sampling noise, beside the observed scatter
WINDOW = 30  # steps before a fall that give the former level
UNKNOWN_PROMPTS = 8  # per step, if config.json does not say
MOST_PROMPTS = 16  # counted at most: batches may differ in difficulty by more than their prompts explain

NEARLY_NOTHING = 0.1  # of the former level: nine of ten right answers are gone
# A run of 200 steps has fewer than 20,000 pairs of a split and a step after which it is tested. At this chance per
# pair, fewer than 1% of healthy runs get a false alarm in all their steps together. This holds however the pairs depend
# on each other (union bound).
CHANCE = 0.01 / 20_000


@dataclass(frozen=True)
class Fall:
    """A fall of correctness.

    Attributes:
        first_low: the first step whose samples show it.
        is_collapse: whether almost nothing is left of the former level.
    """

    first_low: int
    evidence: Evidence
    is_collapse: bool


def correctness_fall(run: RunHistory) -> list[Finding] | str:
    """Correctness fell by more than sampling explains and has not recovered, even in the warm-up or alone.

    It is critical if the held-out problems agree, or if almost nothing is left: nothing is learned from then on.
    """
    run.need("correct", 5)
    fall = fall_of_correctness(run)
    if isinstance(fall, str):
        return fall
    held_out = _held_out_fall(run, fall.first_low)
    severity = CRITICAL if held_out or fall.is_collapse else WARNING
    evidence = [fall.evidence, *([held_out] if held_out else [])]
    return [finding(run, "correctness_fall", severity, fall.first_low, fall.evidence.last, *evidence)]


def fall_of_correctness(run: RunHistory) -> Fall | str:
    """Return the open fall of correctness, or a sentence on the largest one if chance explains it.

    Two tests look for it. The shift of the mean finds partial falls. The exact test finds a fall to nearly nothing, for
    which the normal approximation needs many more steps than the counts do.
    """
    correct = run.column("correct")
    if len(correct) < 5:
        return f"correct has only {len(correct)} values"
    prompts = min(run.setting_number("ROLLOUT_BATCH_SIZE") or UNKNOWN_PROMPTS, MOST_PROMPTS)
    shifted, collapse = _shift_of_mean(correct, prompts), _collapse(correct, prompts)
    if not isinstance(shifted, str):
        return replace(shifted, is_collapse=collapse is not None)
    return collapse or shifted


def _shift_of_mean(correct: Series, prompts: float) -> Fall | str:
    fall = shift(correct.values, -1, least=2)
    assert fall is not None
    z = fall.change / _error_of(fall, correct, prompts)
    recent = float(correct.values[max(fall.index, len(correct) - 10) :].mean())
    text = f"largest lasting fall of correct was {number(min(fall.change, 0.0))} (z {number(z)})"
    if z > -BEYOND_NOISE or fall.change > -min(0.1, 0.6 * fall.before):
        return text
    if recent > fall.before + fall.change / 2:
        return f"{text}, and it recovered to {number(recent)}"
    return _fall(correct, fall.index, {"before": fall.before, "after": fall.after, "z": z})


def _fall(correct: Series, index: int, numbers: dict[str, float], is_collapse: bool = False) -> Fall:
    first, last = int(correct.steps[max(index - WINDOW, 0)]), int(correct.steps[-1])
    return Fall(int(correct.steps[index]), Evidence("correct", first, last, numbers), is_collapse)


def _error_of(fall: Shift, correct: Series, prompts: float) -> float:
    """Return the standard error of a change of level due to sampling alone."""
    sides = correct.values[max(fall.index - WINDOW, 0) : fall.index], correct.values[fall.index :]
    most = max(fall.before * (1 - fall.before), 0.05) / prompts
    return float((max(_variance(side, most) for side in sides) * sum(1 / len(side) for side in sides)) ** 0.5)


def _variance(values: np.ndarray, most: float) -> float:
    """Return the variance of one step's correctness.

    Samples of a prompt are alike. A step thus has at least as many independent samples as prompts, which bounds the
    variance by `most`. The scatter from step to step shows how alike they are.
    """
    scatter = np.diff(values) ** 2 / 2
    return float((PRIOR * most + scatter.sum()) / (PRIOR + len(scatter)))


def _collapse(correct: Series, prompts: float) -> Fall | None:
    """Return a fall to nearly nothing that chance does not explain, at the least likely split.

    Samples before and after a split are compared by their counts alone (Fisher's exact test). The test therefore holds
    for any level and for few samples.
    """
    values, n = correct.values, len(correct)
    total = np.concatenate([[0.0], np.cumsum(values)])
    splits = np.arange(2, n - 1)
    starts = np.maximum(splits - WINDOW, 0)
    before, after = (total[splits] - total[starts]) / (splits - starts), (total[n] - total[splits]) / (n - splits)
    is_low = (before > 0) & (after <= NEARLY_NOTHING * before)
    chances = {
        int(split): _chance(values[start:split], values[split:], prompts)
        for split, start in zip(splits[is_low], starts[is_low], strict=True)
    }
    if not chances or min(chances.values()) > CHANCE:
        return None
    index = min(chances, key=lambda split: chances[split])
    numbers = {"before": float(before[index - 2]), "after": float(after[index - 2]), "chance": chances[index]}
    return _fall(correct, index, numbers, is_collapse=True)


def _chance(before: np.ndarray, after: np.ndarray, prompts: float) -> float:
    """Return the chance of so few right samples after a split if the level were the same on both sides.

    A step counts as many independent samples as it has prompts, and fewer if it scatters by more than that. If the
    samples of each prompt all agree, the counts are integers; otherwise there are more independent samples.
    """
    level = float(before.mean())
    spread = level * (1 - level)
    a_step = prompts if spread == 0 else min(prompts, spread / _variance(before, spread / prompts))
    counts = (round(a_step * count) for count in (before.sum(), len(before), after.sum(), len(after)))
    return chance_of_so_few(*counts)


def _held_out_fall(run: RunHistory, onset: int) -> Evidence | None:
    """Return how exact match fell with the correctness of step `onset`, whose samples were drawn before its update."""
    before, after = run.held_out.window(0, onset - 2), run.held_out.window(onset)
    if not len(before) or not len(after):
        return None
    level, now = float(before.values[-3:].mean()), float(after.values.mean())
    error = max(run.held_out_error, 1e-6) * (1 / min(len(before), 3) + 1 / len(after)) ** 0.5
    if now - level > -0.03 or (now - level) / error > -3:
        return None
    numbers = {"before": level, "after": now, "z": (now - level) / error}
    return Evidence("exact_match", int(before.steps[-3:][0]), int(after.steps[-1]), numbers)
