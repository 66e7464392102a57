"""Types of argparse that also check a range."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number within bounds.

    Attributes:
        kind: int or float.
        wanted: what the user may give, in words.
        holds: whether a number is within the bounds.
    """

    kind: type[int] | type[float]
    wanted: str
    holds: Callable[[float], bool]

    def __call__(self, text: str) -> float:
        try:
            value = self.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self.wanted}") from None
        if not self.holds(value):
            raise argparse.ArgumentTypeError(f"{text} is not {self.wanted}")
        return value


def at_least(low: float, kind: type[int] | type[float] = int, wanted: str = "") -> Number:
    return Number(kind, wanted or f"a {_NAMES[kind]} from {low:g} up", lambda value: low <= value < math.inf)


def above(low: float, wanted: str = "") -> Number:
    return Number(float, wanted or f"a number above {low:g}", lambda value: low < value < math.inf)


_NAMES = {int: "whole number", float: "number"}
SHARE = Number(float, "a share from 0 to 1", lambda value: 0 <= value <= 1)
POSITIVE_SHARE = Number(float, "a share above 0, up to 1", lambda value: 0 < value <= 1)
INTERVAL = Number(int, "1 or more, or -1 for never", lambda value: value >= 1 or value == -1)
SEED = Number(int, "a whole number from 0 to 4294967295", lambda value: 0 <= value < 2**32)
