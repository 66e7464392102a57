"""A fall of correctness beyond noise is found soon, even in the warmup, without others, until it recovers."""

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.finding import CRITICAL, WARNING
from grpo.diagnosis.history import build_history
from grpo.diagnosis.rules.correctness import fall_of_correctness


def draw_observed(level: np.ndarray, prompts: int, samples: int, alike: bool, seed: int) -> np.ndarray:
    """Shares of right samples. If `alike`, all samples of a prompt are right, or all are wrong."""
    rng = np.random.default_rng(seed)
    if alike:
        return rng.binomial(prompts, level) / prompts
    return rng.binomial(prompts * samples, level) / (prompts * samples)


def find_fall(values, evals=(), prompts=8, samples=8, rate=1e-6):
    rows = [{"step": step, "correct": float(value), "actor_lr": rate} for step, value in enumerate(values, 1)]
    config = {"flags": {"rollout_batch_size": prompts, "n_samples_per_prompt": samples}}
    findings = diagnose(build_history(rows, evals, config)).findings
    return next((finding for finding in findings if finding.name == "correctness_fall"), None)


@pytest.mark.parametrize("prompts", [8, 16])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("before", [4, 6, 20, 60])
def test_a_broken_policy_is_found_within_three_steps(prompts, alike, before) -> None:
    """About 0.7, then 0: reported within three steps, with the step of its onset.

    If all samples of a prompt agree, 8 prompts are only 8 samples per step. Detection may take another step, or miss
    a fall.
    """
    late = 0
    for seed in range(20):
        values = draw_observed(np.where(np.arange(before + 3) < before, 0.7, 0.0), prompts, 8, alike, seed)
        fall = find_fall(values, prompts=prompts)
        late += fall is None
        assert fall is None or abs(fall.onset - before - 1) <= alike
    assert late <= (5 if alike and before < 20 else 0)


def test_fall_is_found_while_the_learning_rate_rises() -> None:
    values = [0.7, 0.72, 0.66, 0.71, 0.69, 0.7, 0.0, 0.0, 0.0]
    rows = [{"step": step, "correct": value, "actor_lr": 1e-8 * step} for step, value in enumerate(values, 1)]
    run = build_history(rows, (), {"flags": {"rollout_batch_size": 8}})
    assert run.warm_up == 8
    assert [finding.name for finding in diagnose(run).findings] == ["correctness_fall"]


@pytest.mark.parametrize(
    ("scores", "severity"), [({}, WARNING), ({10: 0.6, 20: 0.62, 30: 0.1}, CRITICAL), ({10: 0.6, 30: 0.58}, WARNING)]
)
def test_fall_is_critical_if_held_out_problems_confirm_it(scores, severity) -> None:
    evals = [{"step": step, "exact_match": score, "samples": 72} for step, score in scores.items()]
    values = draw_observed(np.where(np.arange(32) < 24, 0.7, 0.2), 8, 8, False, 1)
    fall = find_fall(values, evals)
    assert fall is not None and fall.severity == severity and fall.onset == 25
    assert [evidence.metric for evidence in fall.evidence] == ["correct", "exact_match"][: 1 + (severity == CRITICAL)]


def test_recovered_fall_is_over() -> None:
    level = np.where((np.arange(80) >= 20) & (np.arange(80) < 40), 0.05, 0.7)
    values = draw_observed(level, 8, 8, False, 2)
    assert find_fall(values[:40]) and not find_fall(values)


def test_a_fall_that_lasts_stays_open(make_healthy_runs) -> None:
    values = draw_observed(np.where(np.arange(300) < 30, 0.6, 0.2), 8, 8, False, 3)
    assert all(find_fall(values[:end]) is not None for end in range(40, 301, 20))


def test_unknown_settings_do_not_matter() -> None:
    values = draw_observed(np.where(np.arange(30) < 20, 0.7, 0.0), 8, 8, False, 4)
    rows = [{"step": step, "correct": float(value)} for step, value in enumerate(values, 1)]
    assert "correctness_fall" in {finding.name for finding in diagnose(build_history(rows)).findings}


@pytest.mark.parametrize(
    ("prompts", "within", "left"), [(4, 20, 0.0), (8, 14, 0.0), (16, 8, 0.0), (8, 14, 0.01), (16, 8, 0.01)]
)
def test_low_correctness_that_drops_to_zero_is_critical_soon(prompts: int, within: int, left: float) -> None:
    """From 0.3 by few prompts: the normal approximation takes up to 34 steps with 4 prompts, and 19 with 8."""
    for seed in range(10):
        values = draw_observed(np.where(np.arange(30 + within) < 30, 0.3, left), prompts, 8, True, seed)
        fall = find_fall(values, prompts=prompts)
        assert fall is not None and fall.severity == CRITICAL and abs(fall.onset - 31) <= 3


def test_a_handful_of_steps_that_lose_everything_is_critical() -> None:
    """Three steps of 0.27, then next to nothing: too few for a normal approximation."""
    values = [0.27, 0.28, 0.18, 0.07, 0.02, 0.01, *[0.0] * 8]
    fall = find_fall(values, prompts=16)
    assert fall is not None and fall.severity == CRITICAL and fall.onset in (4, 5)


@pytest.mark.parametrize("prompts", [4, 8, 16, 72])
@pytest.mark.parametrize("level", [0.05, 0.3])
@pytest.mark.parametrize("scatter", [0.0, 0.1])
def test_two_hundred_steps_of_noise_raise_no_alarm_at_any_of_them(prompts: int, level: float, scatter: float) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        levels = np.clip(level + rng.normal(0, scatter, 200), 0, 1)
        values = draw_observed(levels, prompts, 8, True, seed)
        rows = [{"step": step, "correct": float(value)} for step, value in enumerate(values, 1)]
        config = {"flags": {"rollout_batch_size": prompts}}
        falls = [fall_of_correctness(build_history(rows[:end], (), config)) for end in range(5, 201)]
        assert not any(fall and fall.is_certain for fall in falls)
