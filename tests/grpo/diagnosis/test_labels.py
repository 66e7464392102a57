"""Training labels that cannot be right, and groups that give no gradient."""

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import CRITICAL, WARNING
from grpo.diagnosis.history import build_history


def diagnose_levels(training, held_out, every=4, prompts=16, temperature=1.0, evaluated_at=1.0, **columns):
    """Findings by name, for levels of correctness of each step; a column is one value for all steps."""
    rng = np.random.default_rng(0)
    samples = 8 * prompts
    rows = [
        {"step": step, "correct": rng.binomial(samples, level) / samples, "actor_lr": 1e-6, **columns}
        for step, level in enumerate(training, 1)
    ]
    evals = [
        {"step": step, "exact_match": rng.binomial(256, held_out[max(step - 1, 0)]) / 256, "n": 256, "samples": 256}
        for step in range(0, len(rows) + 1, every)
    ]
    flags = {
        "rollout_batch_size": prompts,
        "n_samples_per_prompt": 8,
        "temperature": temperature,
        "eval_temperature": evaluated_at,
    }
    findings = diagnose(build_history(rows, evals, {"flags": flags, "judge": {"JUDGE": "0"}})).findings
    return {finding.name: finding for finding in findings}


def test_mostly_wrong_labels_are_reported() -> None:
    skill = np.linspace(0.4, 0.8, 30)
    finding = diagnose_levels(0.3 * skill, skill)["doubtful_labels"]
    assert finding.severity == WARNING and finding.onset <= 9 and finding.actions[0].setting == "TRAIN_DATA"
    assert "labels of the training file" in finding.cause


@pytest.mark.parametrize(
    ("training", "held_out", "more"),
    [
        (np.linspace(0.3, 0.8, 30), np.linspace(0.3, 0.8, 30), {}),
        (np.full(30, 0.4), np.full(30, 0.7), {}),
        (*[np.concatenate([np.full(12, 0.7), np.zeros(18)])] * 2, {}),
        (np.full(30, 0.2), np.full(30, 0.35), {}),
        (np.full(30, 0.2), np.full(30, 0.5), {"evaluated_at": 0.0}),
        (np.full(30, 0.2), np.full(30, 0.7), {"truncated": 0.7}),
        (np.full(30, 0.2), np.full(30, 0.7), {"correct_whole": 0.65}),
    ],
    ids=["equal", "harder", "collapse", "small gap", "colder", "cut", "cut, as logged"],
)
def test_other_differences_between_training_and_held_out_do_not_blame_labels(training, held_out, more) -> None:
    assert "doubtful_labels" not in diagnose_levels(training, held_out, **more)


def test_without_an_evaluation_amid_the_steps_labels_are_not_judged() -> None:
    rows = [{"step": step, "correct": 0.1} for step in range(1, 9)]
    reason = diagnose(build_history(rows, [{"step": 0, "exact_match": 0.9}])).not_judged["doubtful_labels"]
    assert "no evaluation" in reason


@pytest.mark.parametrize(("prompts", "steps"), [(4, 15), (8, 8), (16, 4), (72, 3)])
def test_no_gradient_in_any_step_is_critical(prompts: int, steps: int) -> None:
    zero = np.zeros(steps)
    finding = diagnose_levels(zero, zero, prompts=prompts, grad_norm=0.0, zero_spread_groups=1.0)["no_gradient"]
    assert finding.severity == CRITICAL and (finding.onset, finding.last) == (1, steps)
    earlier = diagnose_levels(zero[1:], zero, prompts=prompts, grad_norm=0.0, zero_spread_groups=1.0)
    assert "no_gradient" not in earlier, "so few groups may all agree by chance"


def test_one_gradient_is_enough() -> None:
    rows = [{"step": step, "grad_norm": 0.1 if step == 5 else 0.0, "zero_spread_groups": 1.0} for step in range(1, 30)]
    assert "no_gradient" in diagnose(build_history(rows)).fine


def test_training_problems_that_are_never_solved_are_one_finding() -> None:
    """Problems too hard, and labels all wrong, look the same: the finding names both."""
    columns = {"grad_norm": 0.0, "zero_spread_groups": 1.0}
    findings = diagnose_levels(np.zeros(20), np.full(20, 0.5), **columns)
    assert set(findings) == {"no_gradient"}
    assert set(findings["no_gradient"].consequences) == {"doubtful_labels", "out_of_range:zero_spread_groups"}
