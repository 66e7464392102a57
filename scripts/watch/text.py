"""Numbers, curves and untrusted text as the terminal can show them."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from rich.cells import cell_len

from grpo.stack.command import printable

_BARS = "▁▂▃▄▅▆▇█"
# A smaller difference is float32 rounding, not a curve.
_FLAT = 1e-6


def sparkline(values: Sequence[float | None], width: int, combine: Callable = statistics.fmean) -> str:
    """Return a curve of at most `width` characters, from the smallest value to the largest; a gap is a blank.

    Args:
        values: in step order; None for a missing value.
        combine: combines the several numbers that share a character.
    """
    cells = values
    if len(values) > width:
        edges = [index * len(values) // width for index in range(width + 1)]
        parts = [[v for v in values[a:b] if v is not None] for a, b in itertools.pairwise(edges)]
        cells = [combine(part) if part else None for part in parts]
    there = [cell for cell in cells if cell is not None]
    low, high = min(there, default=0.0), max(there, default=0.0)
    if high - low < _FLAT:
        return "".join(" " if cell is None else _BARS[3] for cell in cells)
    top = len(_BARS) - 1
    return "".join(" " if cell is None else _BARS[round((cell - low) / (high - low) * top)] for cell in cells)


def number(value: float) -> str:
    """Return a number in at most 8 characters."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001 or size >= 99_999.5:
        text = f"{value:.1e}"
        return text if len(text) <= 8 else f"{value:.0e}"
    return f"{value:.0f}" if size >= 100 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Return a duration with one or two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = math.floor(seconds / 60 + 0.5)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"


def flatten_text(text: object) -> str:
    """Return a file's text on one line, without what a terminal would obey."""
    return printable(" ".join(str(text).split()))


def cut_to_end(text: str, width: int) -> str:
    """Return the last `width` columns of a text, with a sign if something is left out."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    text = text[-(width - 1) :]
    while cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text
