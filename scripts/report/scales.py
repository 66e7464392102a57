"""Numbers as text, axes, and thinning of long series. page.js repeats the first three for zooming."""

import math
from collections.abc import Iterator, Sequence

Points = Sequence[tuple[int, float]]


def text(value: float) -> str:
    """Return a number in few characters: 0.0512, 31.8, 12.3k, 1.2e-5."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= factor:
            divisor = 1e3 if letter == "k" else factor
            return _format_digits(f"{value / divisor:.3g}") + letter
    if size >= 1000:
        return f"{value:.0f}"
    return _format_digits(f"{value + 0.0:.3g}")  # -0.0 is 0


def _format_digits(digits: str) -> str:
    return str(int(float(digits))) if "e" in digits else digits


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from low to high: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * 0.8)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def axis(low: float, high: float, flat: float = 0.0) -> tuple[float, float]:
    """Return the ends of the vertical axis for values from low to high: with a margin, and with 0 if it is near.

    Args:
        flat: the largest difference that means nothing; the axis is not drawn so close that it shows.
    """
    if high - low <= flat:
        reach = 2 * max(-low, high)
        if reach <= 2 * flat:  # as good as 0
            reach = 1e3 * flat or 1.0
        low, high = (0.0 if low >= 0 else -reach), (0.0 if high < -flat else reach)
    room = (high - low) * 0.06
    near = low >= 0 and low < (high - low) * 0.35
    return (0.0 if near else low) - room, high + room


def thin(points: Points, limit: int) -> list[tuple[int, float]]:
    """Return at most `limit` points: the lowest and the highest of each stretch, so that no spike is lost.

    Args:
        limit: at least 4.
    """
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    stretches = (limit - 2) // 2
    kept = {points[0], points[-1]}
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        kept |= {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
    return sorted(kept)


def window(count: int) -> int:
    """Return the smoothing window for a curve of `count` points; 1 if it is short."""
    return 1 if count < 20 else min(50, max(5, count // 20))


def smooth(points: Points, size: int) -> Iterator[tuple[int, float]]:
    """Yield the mean of the last `size` values at each step."""
    for number, (step, _) in enumerate(points):
        part = points[max(0, number + 1 - size) : number + 1]
        yield step, math.fsum(value for _, value in part) / len(part)
