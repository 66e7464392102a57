"""The statistics: against definitions, and on noise of which the truth is known."""

import numpy as np
import pytest

from grpo.diagnosis.series import (
    LONGEST,
    Series,
    neighbors,
    rolling_median,
    shift,
    shift_at,
    sigma,
    spells,
    trend,
)


def make_series(values, steps=None):
    values = np.asarray(values, dtype=float)
    return Series("x", np.arange(len(values)) if steps is None else np.asarray(steps), values)


def draw_autoregressive(rng, n, r):
    noise = rng.normal(size=n)
    for index in range(1, n):
        noise[index] = r * noise[index - 1] + (1 - r * r) ** 0.5 * noise[index]
    return noise


def test_slope_is_right_despite_gaps_between_steps():
    steps = np.array([0, 1, 5, 6, 20])
    line = trend(make_series(3.0 * steps + 1, steps))
    assert line.change == pytest.approx(60) and line.z > 2


def test_a_quarter_of_outliers_does_not_turn_a_trend():
    rng = np.random.default_rng(0)
    values = np.linspace(0, 1, 60) + rng.normal(0, 0.05, 60)
    values[rng.choice(60, 12, replace=False)] -= 50
    assert trend(make_series(values)).change == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_noise_has_no_trend_and_no_shift(r):
    rng = np.random.default_rng(1)
    runs = [draw_autoregressive(rng, 80, r) for _ in range(200)]
    assert np.mean([abs(trend(make_series(run)).z) > 3 for run in runs]) < 0.03
    assert np.mean([abs(shift(run, sign).z) > 5 for run in runs for sign in (1, -1)]) < 0.01


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("offset", [0.0, -2.0])
def test_z_does_not_depend_on_scale_or_offset(scale, offset):
    values = np.random.default_rng(2).normal(size=50).cumsum()
    moved = scale * (values + offset)
    assert trend(make_series(moved)).z == pytest.approx(trend(make_series(values)).z)
    assert shift(moved, 1).z == pytest.approx(shift(values, 1).z, rel=1e-4)
    assert sigma(moved) == pytest.approx(scale * sigma(values))


def test_shift_is_located_even_after_a_slow_rise():
    rng = np.random.default_rng(3)
    values = np.concatenate([np.linspace(0, 0.5, 60), np.full(30, 0.2)]) + rng.normal(0, 0.03, 90)
    fall = shift(values, -1)
    assert abs(fall.index - 60) <= 2 and fall.z < -5 and fall.after == pytest.approx(0.2, abs=0.03)
    assert shift_at(values, fall.index) == fall


def test_too_short_for_a_shift_or_a_trend():
    assert shift(np.arange(15.0), 1, least=8) is None and shift(np.arange(16.0), 1, least=8) is not None
    assert trend(make_series([1, 2, 3])).z == 0


def test_a_long_series_is_thinned_and_keeps_its_trend():
    values = np.linspace(0, 1, 20 * LONGEST) + np.random.default_rng(4).normal(0, 0.2, 20 * LONGEST)
    assert trend(make_series(values)).change == pytest.approx(1, abs=0.05)


def test_rolling_median_looks_back_only():
    values = np.array([5.0, 1.0, 3.0, 2.0, 100.0, 4.0])
    expected = [np.median(values[max(0, end - 2) : end + 1]) for end in range(6)]
    assert rolling_median(values, 3).tolist() == expected
    assert rolling_median(values[:2], 3).tolist() == expected[:2]


def test_spells_bridge_small_gaps_and_drop_short_ones():
    flags = np.array([int(letter) for letter in "0110100001000111"], dtype=bool)
    assert spells(flags, least=3, gap=1) == [(1, 4), (13, 15)]
    assert spells(flags, least=1, gap=0) == [(1, 2), (4, 4), (9, 9), (13, 15)]
    assert spells(np.zeros(5, dtype=bool)) == []


def test_neighbors_of_constants_and_of_alternating_values():
    assert neighbors(np.zeros(10)) == 0 and neighbors(np.array([1.0, -1.0] * 10)) == 0
    assert neighbors(draw_autoregressive(np.random.default_rng(5), 2000, 0.5)) == pytest.approx(0.5, abs=0.07)
