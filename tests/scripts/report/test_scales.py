import statistics

import hypothesis
import hypothesis.strategies as st
import pytest

from scripts.report import scales

numbers = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda value: not 0 < abs(value) < 1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.0, "0"), (0.051234, "0.0512"), (31.78, "31.8"), (999.9, "1000"), (1234.4, "1234"), (12345, "12.3k"),
     (-2.5e6, "-2.5M"), (4e9, "4G"), (0.0005, "0.0005"), (1e-6, "1e-6"), (1.24e-5, "1.2e-5"), (3e20, "3e20")],
)  # fmt: skip
def test_text(value, text):
    assert scales.text(value) == text


@hypothesis.given(numbers)
def test_text_is_short_and_close(value):
    text = scales.text(value)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1)
    assert float(text.rstrip("kMGT")) * factor == pytest.approx(value, rel=0.05) and len(text.lstrip("-")) <= 8


@hypothesis.given(numbers, numbers)
def test_an_axis_holds_its_values_and_its_ticks_are_inside(one, other):
    low, high = scales.axis(min(one, other), max(one, other))
    assert low <= min(one, other) and max(one, other) <= high and low < high
    ticks = scales.ticks(low, high)
    room = (high - low) * 1e-6
    assert 1 <= len(ticks) <= 8 and all(low - room <= tick <= high + room for tick in ticks)
    assert ticks == sorted(set(ticks))


@hypothesis.given(st.lists(st.floats(-100, 100), max_size=300), st.integers(4, 60))
def test_thinning_keeps_the_ends_and_the_extremes(values, limit):
    points = list(enumerate(values))
    thin = scales.thin(points, limit)
    assert len(thin) <= max(limit, 0) and thin == sorted(thin) and set(thin) <= set(points)
    if values:
        assert (thin[0], thin[-1]) == (points[0], points[-1])
        kept = [value for _, value in thin]
        assert (min(kept), max(kept)) == (min(values), max(values))


def test_smoothing_is_the_mean_of_the_last_values():
    points = [(step, float(step % 7)) for step in range(40)]
    smooth = list(scales.smooth(points, 5))
    assert [step for step, _ in smooth] == list(range(40)) and smooth[0] == points[0]
    assert smooth[20][1] == pytest.approx(statistics.fmean(value for _, value in points[16:21]))
    assert scales.window(19) == 1 and scales.window(20) == 5 and scales.window(10_000) == 50
