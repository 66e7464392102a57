import math
import random
import statistics
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo import evaluation


def sample(correct: float, reward: float = 0.0) -> SimpleNamespace:
    logs = {"correct": correct, "truncated": 0.0, "response_length": 10.0}
    return SimpleNamespace(
        info={key: torch.tensor([value]) for key, value in logs.items()}, scores=torch.tensor([reward])
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_interval_holds_the_mean_and_stays_in_range(means):
    low, high = evaluation.interval(means)
    assert 0 <= low <= statistics.fmean(means) + 1e-9
    assert statistics.fmean(means) - 1e-9 <= high <= 1


def test_interval_equals_wilson_for_independent_samples():
    # 30 of 100, one sample a problem: Wilson's interval by its formula is [0.219, 0.396] (n - 1 in the variance).
    low, high = evaluation.interval([1.0] * 30 + [0.0] * 70)
    assert (low, high) == pytest.approx((0.219, 0.396), abs=2e-3)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        skill = [rng.betavariate(1, 2) for _ in range(18)]  # problems differ; the truth is the mean of the beta: 1/3
        low, high = evaluation.interval([statistics.fmean(rng.random() < s for _ in range(4)) for s in skill])
        covered += low <= 1 / 3 <= high
    assert 0.90 <= covered / 400 <= 0.99


def test_interval_does_not_collapse_where_all_agree():
    low, high = evaluation.interval([0.0] * 18)
    assert (low, high) == (0.0, pytest.approx(0.176, abs=0.005))


def test_interval_without_problems_is_an_error():
    with pytest.raises(ValueError, match="at least one problem"):
        evaluation.interval([])


def test_exact_match_is_correctness_and_not_the_reward():
    samples = [sample(1, reward=0.2), sample(0, reward=0.9), sample(0, reward=0.9), sample(0, reward=0.9)]
    result = evaluation.summarise(samples, group_size=2)
    assert result["exact_match"] == 0.25
    assert result["pass_at_k"] == 0.5
    assert (result["n"], result["samples"], result["k"]) == (2, 4, 2)


def test_ungraded_samples_count_neither_way():
    result = evaluation.summarise([sample(1), sample(math.nan), sample(math.nan), sample(math.nan)], group_size=2)
    assert (result["exact_match"], result["n"], result["ungraded"]) == (1.0, 1, 3)
    nothing = evaluation.summarise([sample(math.nan)] * 2, group_size=2)
    assert (nothing["exact_match"], nothing["ci_low"], nothing["ungraded"]) == (None, None, 2)
