"""Charts of the metrics over the steps, drawn by Bokeh, all with one range of steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Range1d
from bokeh.models.annotations import BoxAnnotation, Span, TeeHead, Whisker
from bokeh.palettes import Category10_10
from bokeh.plotting import figure

from grpo.metrics.metric_schema import BY_NAME, SCHEMA, Metric
from grpo.run.eval_metric import EXACT_MATCH, SCORE
from grpo.run.run_state import Run
from scripts.report.numbers import Points, read_series

OTHER = 0  # the tier of columns that the schema does not have
GREY = "#808080"  # readable on white and on black
SMOOTHED = 20  # values from which a curve has a mean, too


@dataclass(frozen=True)
class Chart:
    """One chart, or a constant number, which needs none: `figure` is None then."""

    metric: Metric
    last: list[str]
    figure: Any


def draw_all(runs: Sequence[Run], marks: Sequence[tuple[int, str]]) -> list[Chart]:
    """Return the charts in the schema's order, then those of unknown columns.

    Args:
        marks: steps at which to draw a vertical line, and its color.
    """
    train = [read_series(run.metrics) for run in runs]
    held_out = [read_series(run.evals) for run in runs]
    ends = [{row["step"]: (row.get("ci_low"), row.get("ci_high")) for row in run.evals} for run in runs]
    written = dict.fromkeys(name for series in train for name in series)
    written |= dict.fromkeys(name for series in held_out for name in series if name in BY_NAME or name == SCORE)
    order = {metric.name: place for place, metric in enumerate(SCHEMA)}
    steps = [step for series in (*train, *held_out) for points in series.values() for step, _ in points]
    shared = Range1d(start=min(steps, default=0) - 0.5, end=max(steps, default=1) + 0.5)
    charts = []
    for name in sorted(written, key=lambda name: order.get(_find(name).name, len(order))):
        is_result = name in (EXACT_MATCH, SCORE)
        curves = [
            (train[at].get(name, []), held_out[at].get(name, []), ends[at] if is_result else {})
            for at in range(len(runs))
        ]
        charts.append(_draw(_find(name), curves, shared, marks))
    return charts


def _find(name: str) -> Metric:
    """Return the schema's entry of a column, also of one environment's; the measure of an own reward is tier 1."""
    known = BY_NAME.get(name) or BY_NAME.get(f"{name.partition('.')[0]}.*")
    if known is None:
        return Metric(name, "", 1 if name == SCORE else OTHER, "")
    return replace(known, name=name)


def _draw(
    metric: Metric, curves: Sequence[tuple[Points, Points, dict]], steps: Range1d, marks: Sequence[tuple[int, str]]
) -> Chart:
    values = [value for points, held, _ in curves for _, value in (*points, *held)]
    last = [f"{(points or held)[-1][1]:.4g}" if points or held else "" for points, held, _ in curves]
    if len(values) > len(curves) and max(values) - min(values) <= 1e-6 * max(map(abs, values)):
        return Chart(metric, last, None)
    vertical = DataRange1d()
    plot = figure(height=190, sizing_mode="stretch_width", x_range=steps, y_range=vertical,
                  tools="xbox_zoom,xpan,reset", active_drag="xbox_zoom", background_fill_color=None,
                  border_fill_color=None, outline_line_color=None)  # fmt: skip
    plot.toolbar.autohide = True
    plot.toolbar.logo = None
    plot.grid.grid_line_alpha = 0.2
    plot.axis.major_label_text_color = plot.axis.axis_line_color = plot.axis.major_tick_line_color = GREY
    plot.axis.minor_tick_line_color = None
    if metric.healthy:
        ends = {name: end for name, end in zip(("bottom", "top"), metric.healthy, strict=True) if end is not None}
        plot.add_layout(BoxAnnotation(fill_color="green", fill_alpha=0.06, line_color=None, **ends))
    for step, color in marks:
        plot.add_layout(Span(location=step, dimension="height", line_color=color, line_dash="dashed", line_alpha=0.7))
    for number, (points, held, ends) in enumerate(curves):
        _draw_curve(plot, Category10_10[number % 10], points, held, ends)
    vertical.renderers = [*plot.renderers]  # not the healthy range, beside which a curve may be flat
    plot.add_tools(HoverTool(tooltips=[("step", "@step"), (metric.name, "@value{0.[00000]}")], mode="vline"))
    return Chart(metric, last, plot)


def _draw_curve(plot: Any, color: str, points: Points, held: Points, ends: dict) -> None:
    """Draw the steps' values with the mean of the last ones, and the evaluations' with their intervals."""
    if points:
        size = max(5, len(points) // 20) if len(points) >= SMOOTHED else 1
        values = [value for _, value in points]
        means = [sum(part) / len(part) for at in range(len(values)) if (part := values[max(0, at + 1 - size) : at + 1])]
        source = ColumnDataSource({"step": [step for step, _ in points], "value": values, "mean": means})
        plot.line("step", "value", source=source, color=color, alpha=0.35 if size > 1 else 1)
        if size > 1:
            plot.line("step", "mean", source=source, color=color, line_width=2)
        elif len(points) == 1:
            plot.scatter("step", "value", source=source, color=color)
    if held:
        known = [(step, value, *ends.get(step, (None, None))) for step, value in held]
        columns = {name: [row[at] for row in known] for at, name in enumerate(("step", "value", "low", "high"))}
        source = ColumnDataSource(columns)
        plot.line("step", "value", source=source, color=color)
        plot.scatter("step", "value", source=source, color=color, size=7)
        if all(isinstance(row[2], float) and isinstance(row[3], float) for row in known):
            head = TeeHead(size=8, line_color=color)
            whisker = Whisker(base="step", lower="low", upper="high", source=source, line_color=color)
            whisker.lower_head = whisker.upper_head = head
            plot.add_layout(whisker)
