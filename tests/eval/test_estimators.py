import itertools
import math
import statistics
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.run import estimators

rates = st.lists(st.integers(0, 8).map(lambda correct: correct / 8), min_size=1, max_size=40)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(case):
    n, correct, k = case
    samples = [True] * correct + [False] * (n - correct)
    expected = Fraction(sum(map(any, itertools.combinations(samples, k))), math.comb(n, k))
    assert estimators.pass_at_k(n, correct, k) == pytest.approx(float(expected))


@given(st.floats(0.001, 0.999), st.integers(1, 200))
def test_t_quantile_inverts_the_distribution_function(probability, freedom):
    t = estimators.t_quantile(probability, freedom)
    tail = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True) / 2
    assert float(1 - tail if t > 0 else tail) == pytest.approx(probability, abs=1e-7)


@given(rates, st.floats(1, 16))
def test_interval_contains_the_mean_stays_in_range_and_is_not_empty(values, draws):
    low, high = estimators.interval(values, draws)
    assert 0 <= low <= statistics.fmean(values) + 1e-9
    assert statistics.fmean(values) - 1e-9 <= high <= 1
    assert high - low > 0.02


def compute_wilson_interval(correct: int, n: int, quantile: float) -> tuple[float, float]:
    """The rates p at which (rate - p)^2 = quantile^2 p (1 - p) / n."""
    rate, square = correct / n, quantile**2 / n
    roots = np.roots([1 + square, -(2 * rate + square), rate**2])
    return min(roots), max(roots)


@pytest.mark.parametrize("correct", [0, 1, 9, 18])
def test_interval_with_one_sample_per_problem_is_wilsons_with_students_t(correct):
    values = [1.0] * correct + [0.0] * (18 - correct)
    assert estimators.interval(values) == pytest.approx(compute_wilson_interval(correct, 18, 2.109816), abs=1e-6)


def draw_skills(rng: np.random.Generator, a: float, b: float, shape: tuple[int, int]) -> np.ndarray:
    return rng.beta(a, b, shape)


@pytest.mark.parametrize("problems", [18, 90])
@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize(("a", "b"), [(1, 2), (0.3, 0.3), (5, 5), (1, 9)])
def test_interval_has_nominal_coverage(problems, samples, a, b):
    # Problems are drawn and samples are drawn: the truth is the mean over all problems there could be.
    rng = np.random.default_rng(0)
    values = rng.binomial(samples, draw_skills(rng, a, b, (1500, problems))) / samples
    limits = [estimators.interval(row, samples) for row in values.tolist()]
    covered = np.mean([low <= a / (a + b) <= high for low, high in limits])
    assert 0.915 <= covered <= 0.99


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), min_size=2, max_size=20))
def test_scores_of_0_and_1_have_the_interval_of_exact_match(groups):
    rates = [statistics.fmean(group) for group in groups]
    draws = len(groups) / sum(1 / len(group) for group in groups)
    assert estimators.score_interval(groups) == pytest.approx(estimators.interval(rates, draws), abs=1e-9)


def test_one_score_a_problem_counts_for_as_many_draws_of_0_or_1_as_it_varies_less():
    scores = [-1.0, 0.5, 2.0, 3.0, 3.0, 0.0]
    share, variance = (np.mean(scores) + 1) / 4, np.var(scores) / 16
    size = 6 * share * (1 - share) / variance
    expected = [-1 + 4 * end for end in compute_wilson_interval(share * size, size, 2.570582)]
    assert estimators.score_interval([[score] for score in scores]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("problems", [18, 90])
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("kind", ["rare", "partial", "signed", "large"])
def test_interval_of_scores_covers_the_truth(problems, samples, kind):
    rng = np.random.default_rng(6)
    shape = (250, problems, samples)
    skill = rng.beta(1, 9, shape[:2])[..., None]
    draws, truth = {
        "rare": lambda: (rng.random(shape) < skill, 0.1),
        "partial": lambda: (skill * rng.beta(2, 1, shape), 0.1 * 2 / 3),
        "signed": lambda: (rng.choice([-1, 0, 1], shape, p=[0.1, 0.3, 0.6]), 0.5),
        "large": lambda: (50 + 7 * rng.normal(size=(*shape[:2], 1)) + 7 * rng.normal(size=shape), 50),
    }[kind]()
    limits = [estimators.score_interval(groups) for groups in draws.astype(float).tolist()]
    assert 0.9 <= np.mean([low <= truth <= high for low, high in limits]) <= 0.995


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_difference_interval_contains_the_difference_and_is_not_empty(pairs):
    a, b = ([value / 4 for value in side] for side in zip(*pairs, strict=True))
    low, high = estimators.difference_interval(a, b, 4)
    difference = statistics.fmean(b) - statistics.fmean(a)
    assert -1 <= low <= difference + 1e-9
    assert difference - 1e-9 <= high <= 1
    assert high - low > 0.01
    assert estimators.difference_interval(b, a, 4) == pytest.approx((-high, -low))


def shift_skills(rng: np.random.Generator, skill: np.ndarray, by: float, spread: float) -> np.ndarray:
    """Skills of another policy: in logits, moved by `by` and scattered."""
    odds = np.log(skill / (1 - skill)) + by + rng.normal(0, spread, skill.shape)
    return 1 / (1 + np.exp(-odds))


@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize(("a", "b"), [(1, 2), (0.3, 0.3), (5, 5)])
def test_difference_interval_covers_the_truth(samples, a, b):
    rng = np.random.default_rng(2)
    every = np.clip(draw_skills(rng, a, b, (1, 10**6)), 1e-9, 1 - 1e-9)
    truth = np.mean(shift_skills(rng, every, 0.7, 0.7) - every)
    skill = np.clip(draw_skills(rng, a, b, (1500, 18)), 1e-9, 1 - 1e-9)
    left = rng.binomial(samples, skill) / samples
    right = rng.binomial(samples, shift_skills(rng, skill, 0.7, 0.7)) / samples
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    limits = [estimators.difference_interval(x, y, samples) for x, y in pairs]
    assert 0.915 <= np.mean([low <= truth <= high for low, high in limits]) <= 0.99


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_exact_p_value_counts_all_flips(differences):
    flips = itertools.product((1, -1), repeat=len(differences))
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    expected = sum(total >= observed for total in sums) / len(sums)
    assert estimators.sign_flip_p_value([difference / 4 for difference in differences]) == pytest.approx(expected)


def test_random_flips_agree_with_the_exact_test(monkeypatch):
    rng = np.random.default_rng(3)
    differences = (rng.integers(-3, 5, 16) / 4).tolist()
    exact = estimators.sign_flip_p_value(differences)
    monkeypatch.setattr(estimators, "EXACT_PROBLEMS", 0)
    assert estimators.sign_flip_p_value(differences) == pytest.approx(exact, abs=0.01)


def compute_p_values(rng: np.random.Generator, left: np.ndarray, right: np.ndarray, samples: int) -> np.ndarray:
    differences = (rng.binomial(samples, right) - rng.binomial(samples, left)) / samples
    return np.array([estimators.sign_flip_p_value(row) for row in differences.tolist()])


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_detectable_difference_is_detected_with_the_stated_power(samples):
    rng = np.random.default_rng(5)
    problems, mean = 18, 1 / 3
    skill, gain = draw_skills(rng, 2, 4, (800, problems)), 0.3 / math.sqrt(samples)
    for _ in range(2):  # sets the gain to the difference that the comparison reports as detectable
        better = np.minimum(1, skill + gain / (1 - mean) * (1 - skill))
        left, right = (rng.binomial(samples, side) / samples for side in (skill, better))
        said = []
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            differences = [y - x for x, y in zip(a, b, strict=True)]
            low, high = estimators.difference_interval(a, b, samples)
            said.append(estimators.detectable_difference(differences, low, high, samples, room=1.0) or 1.0)
        gain = min(float(np.median(said)), 1 - mean)
    better = np.minimum(1, skill + gain / (1 - mean) * (1 - skill))
    assert 0.7 <= np.mean(compute_p_values(rng, skill, better, samples) <= 0.05) <= 0.88


def test_too_few_problems_cannot_show_a_difference():
    assert estimators.sign_flip_p_value([1.0] * 5) > 0.05
    assert estimators.detectable_difference([0.5] * 5, 0.4, 0.6, 4, room=1.0) is None
    assert estimators.sign_flip_p_value([1.0] * 6) < 0.05
    assert estimators.detectable_difference([0.5] * 6, 0.4, 0.6, 4, room=1.0) is not None
    assert estimators.detectable_difference([-1.0, 1.0] * 4, -1, 1, 1, room=1.0) is None
    given = [0.5, -0.5] * 10, -0.2, 0.2, 4
    smallest = estimators.detectable_difference(*given, room=1.0)
    assert smallest is not None and 0.2 < smallest < 0.6
    assert estimators.detectable_difference(*given, room=smallest + 0.01) == smallest
    assert estimators.detectable_difference(*given, room=smallest - 0.01) is None, "it is a possible one"
