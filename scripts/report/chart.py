"""One chart as SVG paths, in coordinates that zooming leaves unchanged.

The plot is a nested SVG, from (0, 0) at its top left to (SIZE, SIZE), stretched to its area. Zooming changes its
viewBox. Its strokes are not stretched.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.report import scales
from scripts.report.panels import HeldOut, Panel

SIZE = 10_000
# In chart units: the whole chart, and the plot's area in it.
WIDTH, HEIGHT = 360, 172
LEFT, TOP, INNER_WIDTH, INNER_HEIGHT = 44, 14, 306, 134
PAD = 0.02  # of the plot, left empty on both sides
POINTS = 2400  # per chart, over all its curves


@dataclass(frozen=True)
class Line:
    """One run's paths: values, smoothed values, evaluations and their intervals."""

    run: int
    raw: str
    smooth: str
    dots: str
    bars: str


@dataclass(frozen=True)
class Chart:
    """What the template draws of one panel.

    Attributes:
        x_ticks, y_ticks: position in chart units, and label.
        band: top and height of the healthy range, in the plot.
        data: what page.js needs to read values and to zoom.
    """

    panel: Panel
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    band: tuple[int, int] | None
    lines: list[Line]
    data: dict[str, Any]


def draw(panel: Panel, steps: tuple[int, int]) -> Chart:
    """Draw one panel.

    Args:
        steps: the first and the last step of the report; equal if there is only one.
    """
    low, high = scales.axis(min(panel.values), max(panel.values), panel.flat)
    limit = max(100, POINTS // len(panel.curves))
    lines, data = [], []
    for curve in panel.curves:
        points = scales.thin(curve.points, limit)
        size = scales.window(len(curve.points))
        smooth = list(scales.smooth(curve.points, size)) if size > 1 else []

        def path(points: Iterable[tuple[int, float]]) -> str:
            return _path([(x(step, steps), y(value, low, high)) for step, value in points])

        held = curve.held_out
        line = path((p.step, p.value) for p in held) if panel.metric.source == "eval" else ""
        lines.append(
            Line(
                curve.run,
                path(points),
                path(scales.thin(smooth, limit)) or line,
                _dots([*((p.step, p.value) for p in held), *(points if len(points) == 1 else ())], steps, low, high),
                _bars(held, steps, low, high),
            )
        )
        data.append(
            {
                "run": curve.run,
                "steps": [step for step, _ in points],
                "values": [_round_value(value) for _, value in points],
                "held": [[p.step, *map(_round_value, (p.value, p.low, p.high))] for p in held],
            }
        )
    return Chart(
        panel,
        x_ticks(steps),
        [(TOP + y(tick, low, high) * INNER_HEIGHT / SIZE, scales.text(tick)) for tick in scales.ticks(low, high)],
        _band(panel.metric.healthy, low, high),
        lines,
        {"axis": [low, high], "flat": panel.flat, "curves": data},
    )


def x(step: float, steps: tuple[int, int]) -> int:
    """Return the position of a step in the plot."""
    first, last = steps
    return round((PAD + (step - first) / (last - first) * (1 - 2 * PAD)) * SIZE) if last > first else SIZE // 2


def y(value: float, low: float, high: float) -> int:
    """Return the position of a value in the plot, whose axis goes from low to high."""
    return round((high - value) / (high - low) * SIZE)


def x_ticks(steps: tuple[int, int]) -> list[tuple[float, str]]:
    """Return the labels below a chart: whole steps."""
    first, last = steps
    whole = [tick for tick in scales.ticks(first, last) if tick == int(tick)] if last > first else [float(first)]
    return [(LEFT + x(tick, steps) * INNER_WIDTH / SIZE, scales.text(tick)) for tick in whole]


def _path(points: Sequence[tuple[int, int]]) -> str:
    if len(points) < 2:
        return ""
    moves = (f"{b[0] - a[0]} {b[1] - a[1]}" for a, b in itertools.pairwise(points))
    return f"M{points[0][0]} {points[0][1]}l" + " ".join(moves)


def _dots(points: Iterable[tuple[int, float]], steps: tuple[int, int], low: float, high: float) -> str:
    # Zero-length lines with round ends: circles that a zoom does not stretch.
    return "".join(f"M{x(step, steps)} {y(value, low, high)}h0" for step, value in points)


def _bars(held_out: Sequence[HeldOut], steps: tuple[int, int], low: float, high: float) -> str:
    return "".join(
        f"M{x(p.step, steps)} {y(p.low, low, high)}V{y(p.high, low, high)}"
        for p in held_out
        if p.low is not None and p.high is not None
    )


def _band(healthy: tuple[float | None, float | None] | None, low: float, high: float) -> tuple[int, int] | None:
    if healthy is None:
        return None
    top = 0 if healthy[1] is None else max(0, y(min(healthy[1], high), low, high))
    bottom = SIZE if healthy[0] is None else min(SIZE, y(max(healthy[0], low), low, high))
    return (top, bottom - top) if bottom > top else None


def _round_value(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
