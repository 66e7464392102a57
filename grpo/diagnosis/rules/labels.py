"""Are the training labels right? Finds held-out problems that are solved far more often than training problems."""

import numpy as np

from grpo.diagnosis.finding import WARNING, Evidence, Finding, NotJudged, number
from grpo.diagnosis.history import RunHistory
from grpo.diagnosis.remedies import finding
from grpo.diagnosis.series import Series
from grpo.run.measure import SCORE

NEAR = 5  # steps on each side of an evaluation to compare it with
LEAST = 3  # of those steps
RECENT = 3  # evaluations that count
# If both files are equally hard, more than half of the training labels are wrong. A training file made harder on
# purpose seldom halves the share of right rollouts.
SHARE = 0.5
COLDER_SHARE = 0.25  # a lower evaluation temperature alone may double the share of right rollouts
LEAST_GAP = 0.2  # of correctness: a smaller gap may come from the problems
BEYOND_NOISE = 3.5  # standard errors: a run has a few dozen evaluations, each tested once


def doubtful_labels(run: RunHistory) -> list[Finding] | str:
    """Held-out problems are solved at least twice as often as training problems, or score at least twice as much.

    The cost of the length limit is removed: only uncut training rollouts count. The training steps both before and
    after an evaluation must be low, so neither fast learning nor a collapse counts.
    """
    whole = _compute_uncut(run)
    judged = [step for step in run.held_out.steps if min(len(side(whole, step)) for side in SIDES) >= LEAST]
    evaluations = judged[-RECENT:]
    if not evaluations:
        raise NotJudged(f"no evaluation has {LEAST} steps with a value of {run.training_name} before and after it")
    level, held_out, training = _levels(run, whole, evaluations)
    error = (_training_error(run, training) ** 2 + _held_out_error(run, held_out) ** 2) ** 0.5
    z = (held_out - level) / error
    measure = "score" if whole.name == SCORE else "correctness"
    text = f"{run.held_out_name} is {number(held_out)}, training {measure} {number(level)} (z {number(z)})"
    if held_out - level < LEAST_GAP * run.width or level > _share(run) * held_out or z < BEYOND_NOISE:
        return text
    onset, last = _onset(run, whole, judged), int(run.steps[-1])
    first = max(int(evaluations[0]) - NEAR + 1, int(run.steps[0]))
    evidence = [
        Evidence(run.held_out.name, int(evaluations[0]), int(evaluations[-1]), {"mean": held_out}),
        Evidence(whole.name, first, min(int(evaluations[-1]) + NEAR, last), {"mean": level, "z of the gap": z}),
    ]
    return [finding(run, "doubtful_labels", WARNING, onset, last, *evidence)]


def _compute_uncut(run: RunHistory) -> Series:
    """Return the share of right rollouts among those that were not cut: no cut rollout counts as right.

    Of a score, return the most that their mean can be if no score is negative.

    Raises:
        NotJudged: if a column is missing, or the score of a step or an evaluation is negative.
    """
    if run.training_name == SCORE and run.scale[0] < 0:
        raise NotJudged("the score is negative at times, so levels have no ratio")
    if run.training_name != SCORE and len(whole := run.column("correct_whole")):
        return whole
    if not len(run.column("truncated")):
        return run.require_column(run.training_name, 1)
    training, cut = run.align_columns(run.training_name, "truncated", least=1)
    some = cut.values < 1
    name = SCORE if run.training_name == SCORE else "correct_whole"
    return Series(name, training.steps[some], np.minimum(training.values[some] / (1 - cut.values[some]), run.scale[1]))


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
    return float(max(values.var(), _variance(run, float(values.mean())) / prompts) / len(values)) ** 0.5


def _variance(run: RunHistory, level: float) -> float:
    """Return the variance of a sample at a level: of all on this scale, samples at its two ends vary most."""
    return max(level * (run.scale[1] - level), 0.05 * run.scale[1] ** 2)


def _held_out_error(run: RunHistory, level: float) -> float:
    """Return the standard error of an evaluation; the same problems each time count once."""
    if run.measure == SCORE and run.held_out_error:
        return run.held_out_error
    problems = [row["n"] for row in run.evals if isinstance(row.get("n"), int | float) and row["n"] > 0]
    return (_variance(run, level) / (problems[-1] if problems else 8)) ** 0.5


def _share(run: RunHistory) -> float:
    training, evaluation = run.setting_number("TEMPERATURE"), run.setting_number("EVAL_TEMPERATURE")
    if training is None or evaluation is None or evaluation < training:
        return COLDER_SHARE
    return SHARE
