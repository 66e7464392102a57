"""Are the training labels right? Finds held-out problems that are solved far more often than training problems."""

import numpy as np

from grpo.diagnosis.finding import WARNING, Evidence, Finding, NotJudged, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.series import Series

NEAR = 5  # steps on each side of an evaluation to compare it with
LEAST = 3  # of those steps
RECENT = 3  # evaluations that count
# If both files are equally hard, more than half of the training labels are wrong. A training file made harder on
# purpose seldom halves the share of right samples.
SHARE = 0.5
COLDER_SHARE = 0.25  # a lower evaluation temperature alone may double the share of right samples
LEAST_GAP = 0.2  # of correctness: a smaller gap may come from the problems
BEYOND_NOISE = 3.5  # standard errors: a run has a few dozen evaluations, each tested once


def doubtful_labels(run: RunHistory) -> list[Finding] | str:
    """Held-out problems are solved at least twice as often as training problems.

    The cost of the length limit is removed: only uncut training samples count. The training steps both before and after
    an evaluation must be low, so neither fast learning nor a collapse counts.
    """
    whole = _compute_uncut(run)
    judged = [step for step in run.held_out.steps if min(len(side(whole, step)) for side in SIDES) >= LEAST]
    evaluations = judged[-RECENT:]
    if not evaluations:
        raise NotJudged(f"no evaluation has {LEAST} steps with a value of correct before and after it")
    level, held_out, training = _levels(run, whole, evaluations)
    error = (_training_error(run, training) ** 2 + _held_out_error(run, held_out) ** 2) ** 0.5
    z = (held_out - level) / error
    text = f"held-out exact match is {number(held_out)}, training correctness {number(level)} (z {number(z)})"
    if held_out - level < LEAST_GAP or level > _share(run) * held_out or z < BEYOND_NOISE:
        return text
    onset, last = _onset(run, whole, judged), int(run.steps[-1])
    first = max(int(evaluations[0]) - NEAR + 1, int(run.steps[0]))
    evidence = [
        Evidence("exact_match", int(evaluations[0]), int(evaluations[-1]), {"mean": held_out}),
        Evidence("correct_whole", first, min(int(evaluations[-1]) + NEAR, last), {"mean": level, "z of the gap": z}),
    ]
    return [finding(run, "doubtful_labels", WARNING, onset, last, *evidence)]


def _compute_uncut(run: RunHistory) -> Series:
    """Return the share of right samples among those that were not cut: no cut sample counts as right."""
    if len(whole := run.column("correct_whole")):
        return whole
    if not len(run.column("truncated")):
        return run.require_column("correct", 1)
    correct, cut = run.align_columns("correct", "truncated", least=1)
    some = cut.values < 1
    return Series("correct_whole", correct.steps[some], np.minimum(correct.values[some] / (1 - cut.values[some]), 1.0))


def _select_before(column: Series, step: int) -> np.ndarray:
    return column.window(step - NEAR + 1, step).values


def _select_after(column: Series, step: int) -> np.ndarray:
    return column.window(step + 1, step + NEAR).values


SIDES = (_select_before, _select_after)


def _levels(run: RunHistory, whole: Series, evaluations: list[int]) -> tuple[float, float, np.ndarray]:
    """Return the training and the held-out level around some evaluations, and the values behind the former.

    The training level is the higher one of the steps before and after the evaluations.
    """
    sides = [np.concatenate([side(whole, step) for step in evaluations]) for side in SIDES]
    training = max(sides, key=lambda values: float(values.mean()))
    held_out = float(np.mean([run.held_out.window(step, step).values[0] for step in evaluations]))
    return float(training.mean()), held_out, training


def _onset(run: RunHistory, whole: Series, evaluations: list[int]) -> int:
    """Return the first evaluation from which each evaluation alone is that far above the training problems."""
    onset = evaluations[-1]
    for step in reversed(evaluations):
        level, held_out, _ = _levels(run, whole, [step])
        if level > _share(run) * held_out:
            break
        onset = step
    return int(onset)


def _training_error(run: RunHistory, values: np.ndarray) -> float:
    """Return the standard error of a mean over steps: from their scatter, but at least that of their prompts."""
    prompts = run.setting_number("ROLLOUT_BATCH_SIZE") or 8
    level = float(values.mean())
    return float(max(values.var(), max(level * (1 - level), 0.05) / prompts) / len(values)) ** 0.5


def _held_out_error(run: RunHistory, rate: float) -> float:
    """Return the standard error of exact match; the same problems each time count once."""
    problems = [row["n"] for row in run.evals if isinstance(row.get("n"), int | float) and row["n"] > 0]
    return float((max(rate * (1 - rate), 0.05) / (problems[-1] if problems else 8)) ** 0.5)


def _share(run: RunHistory) -> float:
    training, evaluation = run.setting_number("TEMPERATURE"), run.setting_number("EVAL_TEMPERATURE")
    if training is None or evaluation is None or evaluation < training:
        return COLDER_SHARE
    return SHARE
