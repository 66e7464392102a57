"""Robust statistics of short noisy series: a run has 20 to 200 steps, and a step is the mean of 64 to 128 samples.

Standard errors account for the correlation of neighbors. Nothing here is a p-value. The rules look at many splits of
many columns after every step, so they require 4 to 5 standard errors instead of 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grpo.diagnosis.finding import Evidence

MAD_TO_SIGMA = 1.4826  # for a normal distribution
LONGEST = 200  # values compared pairwise; longer series are thinned to medians of blocks


@dataclass(frozen=True)
class Series:
    """One column, at the steps with a finite number.

    Attributes:
        steps: [N] int64, ascending.
        values: [N] float64.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def window(self, first: int, last: int | None = None) -> "Series":
        """Return the part from step `first` to step `last`, both inclusive."""
        kept = self.steps >= first
        if last is not None:
            kept &= self.steps <= last
        return Series(self.name, self.steps[kept], self.values[kept])

    def evidence(self, numbers: Mapping[str, float], first: int = 0, last: int = -1) -> Evidence:
        """Return numbers over the steps from index `first` to index `last`, both inclusive."""
        plain = {what: float(value) for what, value in numbers.items()}
        return Evidence(self.name, int(self.steps[first]), int(self.steps[last]), plain)


@dataclass(frozen=True)
class Trend:
    """A monotone trend.

    Attributes:
        change: from the first step to the last, along the Theil-Sen line.
        z: Mann-Kendall's statistic in standard errors; 0 for fewer than 4 values.
    """

    change: float
    z: float


@dataclass(frozen=True)
class Shift:
    """A change of level.

    Attributes:
        index: the first value of the new level.
        before, after: the means of the two levels.
        z: the difference in standard errors.
    """

    index: int
    before: float
    after: float
    z: float

    @property
    def change(self) -> float:
        return self.after - self.before


def sigma(values: np.ndarray) -> float:
    """Return the standard deviation estimated from the median absolute deviation; 0 for fewer than 2 values."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values)))) if len(values) > 1 else 0.0


def neighbors(residuals: np.ndarray) -> float:
    """Return the correlation of each value with the next, clipped to 0..0.6.

    The upper limit is for series that a trend or a level fits badly, whose residuals correlate for that reason.
    """
    if len(residuals) < 3:
        return 0.0
    centred = residuals - residuals.mean()
    power = float(centred @ centred)
    return min(max(float(centred[1:] @ centred[:-1]) / power, 0.0), 0.6) if power > 0 else 0.0


def trend(series: Series) -> Trend:
    """Return the Theil-Sen slope over the series and Mann-Kendall's z, its variance widened for correlation."""
    steps, values = _thin(series)
    n = len(values)
    if n < 4:
        return Trend(0.0, 0.0)
    left, right = np.triu_indices(n, 1)
    rises = values[right] - values[left]
    slope = float(np.median(rises / (steps[right] - steps[left])))
    r = neighbors(values - slope * steps)
    variance = n * (n - 1) * (2 * n + 5) / 18 * (1 + r) / (1 - r)
    return Trend(slope * float(series.steps[-1] - series.steps[0]), float(np.sign(rises).sum()) / variance**0.5)


def _thin(series: Series) -> tuple[np.ndarray, np.ndarray]:
    steps, values = series.steps.astype(float), series.values
    if len(values) <= LONGEST:
        return steps, values
    size = -(-len(values) // LONGEST)
    blocks = [slice(start, start + size) for start in range(0, len(values), size)]
    return np.array([steps[b].mean() for b in blocks]), np.array([np.median(values[b]) for b in blocks])


def shift(values: np.ndarray, sign: int, least: int = 8, window: int = 30) -> Shift | None:
    """Return the largest lasting change of level in one direction; None if the series is too short.

    The split is where means over at most `window` values on each side differ most. The new level is the mean from there
    to the end, the old one that of the window before. A slow rise before a fall therefore does not hide it.

    Args:
        values: [N] float64.
        sign: 1 for a rise, -1 for a fall.
        least: values on each side.
    """
    n = len(values)
    if n < 2 * least:
        return None
    total = np.concatenate([[0.0], np.cumsum(values)])
    splits = np.arange(least, n - least + 1)
    starts, ends = np.maximum(splits - window, 0), np.minimum(splits + window, n)
    old, new = splits - starts, ends - splits
    change = (total[ends] - total[splits]) / new - (total[splits] - total[starts]) / old
    scores = sign * change / np.sqrt(1 / old + 1 / new)
    return shift_at(values, int(splits[np.argmax(scores)]), window)


def shift_at(values: np.ndarray, index: int, window: int = 30) -> Shift:
    """Return the change of level at a given split; both sides have at least one value."""
    old, new = values[max(index - window, 0) : index], values[index:]
    residuals = np.concatenate([old - old.mean(), new - new.mean()])
    r = neighbors(residuals)
    deviation = float(np.sqrt((residuals @ residuals) / max(len(residuals) - 2, 1) * (1 + r) / (1 - r)))
    change = float(new.mean() - old.mean())
    error = max(deviation, 1e-12) * (1 / len(old) + 1 / len(new)) ** 0.5
    return Shift(index, float(old.mean()), float(new.mean()), change / error)


def rolling_median(values: np.ndarray, width: int = 5) -> np.ndarray:
    """Return the median of each value and the preceding ones, `width` in all; [N], fewer at the start."""
    start = [np.median(values[: end + 1]) for end in range(min(width - 1, len(values)))]
    if len(values) < width:
        return np.array(start)
    return np.concatenate([start, np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)])


def spells(flags: np.ndarray, least: int = 3, gap: int = 2) -> list[tuple[int, int]]:
    """Return (first, last) index of each spell of at least `least` flagged values.

    Args:
        flags: [N] bool.
        gap: unflagged values that do not end a spell.
    """
    groups: list[list[int]] = []
    for index in np.flatnonzero(flags):
        if groups and index - groups[-1][-1] <= gap + 1:
            groups[-1].append(int(index))
        else:
            groups.append([int(index)])
    return [(spell[0], spell[-1]) for spell in groups if len(spell) >= least]
