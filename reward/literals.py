r"""Numbers as they are written: integers with padding and separators, fractions, decimals, numbers in a base.

String work and exact arithmetic on spelled texts (`notation.spell`).
"""

import math
import re
from fractions import Fraction

# The first group of three digits is not all zeros: "0,204" is not a number.
_GROUPED = r"(?!0+{separator})[0-9]{{1,3}}(?:{separator}[0-9]{{3}})+"
_COMMAS = _GROUPED.format(separator=",")
_INTEGER = re.compile(rf"([+-]?) ?([0-9]+|{_COMMAS}|{_GROUPED.format(separator=' ')})(?:\.0*)?\Z")
_FRACTION = re.compile(
    r"([+-]?)(?:(?P<whole>[0-9]+) ?)?"
    r"(?:\\frac\{(?P<p>-?[0-9]+)\}\{(?P<q>-?[0-9]+)\}|(?<![0-9])(?P<n>[0-9]+)/(?P<d>[0-9]+))\Z"
)
_DECIMAL = re.compile(
    rf"([+-]?)(?P<whole>{_COMMAS}|[0-9]*)"
    r"(?:\.(?P<digits>[0-9]*)(?:\\(?:overline|bar)\{?(?P<repeat>[0-9]+)\}?)?)?\Z"
)
# A calculator's 4.5e33. Products and sums with e are excluded: 2e3, 2e-1, 2E+1.
_SCIENTIFIC = re.compile(
    r"([+-]?(?P<point>[0-9]{0,30}\.)?[0-9]{1,30})(?:e(?P<plain>[0-9]{2,3})|e(?P<signed>[+-][0-9]{1,3})"
    r"|E(?P<capital>[+-]?[0-9]{1,3}))\Z"
)
# The greatest common divisor or the least common multiple of integers.
_DIVISORS = re.compile(
    r"\\?(?:(?:operatorname|text) ?\{ ?)?(?<![A-Za-z])(?P<name>gcd|lcm|GCD|LCM) ?\}? ?"
    r"\((?P<numbers>[0-9]{1,50}(?:, ?[0-9]{1,50})+)\)"
)
_BASE_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# The base is written 2, {2}, {(2)}, \text{two}, {\text{base }2} and so on.
_BASED = re.compile(
    r"\(?([0-9A-Z]+)\)?_(?:([0-9])|(?:\{|(?=\\))(?:\\text ?\{)?\(?(?:base ?)?\}?"
    rf"(?:([0-9]{{1,2}})|(?:\\text ?\{{)?({'|'.join(_BASE_WORDS)}))\)?[ }}]*)\Z",
    re.IGNORECASE,
)


def integer(value: str) -> str | None:
    """The canonical digits of an integer literal (no padding, no separators, no `.0`), None for anything else."""
    match = _INTEGER.match(value)
    if not match:
        return None
    digits = match[2].replace(",", "").replace(" ", "").lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits


def rational(value: str) -> Fraction | None:
    r"""The number that a squeezed literal says: `3/4`, `1\frac{1}{2}`, `0.25`, `0.1\overline{6}`, `4.5e33`."""
    if digits := integer(value):
        return Fraction(int(digits))
    if match := _FRACTION.match(value):
        p, q = int(match["p"] or match["n"]), int(match["q"] or match["d"])
        if not q or (match["whole"] is not None and not 0 < p < q):
            return None
        number = int(match["whole"] or 0) + Fraction(p, q)
    elif (match := _DECIMAL.match(value)) and (match["whole"] or match["digits"] or match["repeat"]):
        digits, repeat = match["digits"] or "", match["repeat"]
        number = Fraction(int(match["whole"].replace(",", "") + digits or 0), 10 ** len(digits))
        if repeat:
            number += Fraction(int(repeat), (10 ** len(repeat) - 1) * 10 ** len(digits))
    else:
        return scientific(value)
    return -number if match[1] == "-" else number


def scientific(value: str) -> Fraction | None:
    """The number that a calculator writes with an exponent: `4.5e33`; None for anything else."""
    match = _SCIENTIFIC.match(value)
    if not match or (not match["plain"] and not match["point"] and match[1].lstrip("+-") != "1"):
        return None
    if match["capital"] and (not match["point"] or len(match["capital"].lstrip("+-")) < 2):
        return None
    return Fraction(match[1]) * Fraction(10) ** int(match["plain"] or match["signed"] or match["capital"])


def parse_in_base(value: str) -> tuple[str, int] | None:
    r"""(digits, base) of a squeezed number with a subscript, such as `1A_{16}`; None for anything else."""
    match = _BASED.match(value)
    if not match or not any(character.isdigit() for character in match[1]):
        return None
    digits = match[1].upper().lstrip("0")
    base = _BASE_WORDS.index(match[4].lower()) + 2 if match[4] else int(match[2] or match[3])
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return digits, base


def replace_divisors(text: str) -> str:
    r"""The text with the value of each `\gcd(12,18)` and `\operatorname{lcm}(4,6)` of integers in its place."""
    for _ in range(3):  # they may be nested
        text, count = _DIVISORS.subn(_divisors, text)
        if not count:
            break
    return text


def _divisors(match: re.Match[str]) -> str:
    function = math.gcd if match["name"].lower() == "gcd" else math.lcm
    value = str(function(*map(int, match["numbers"].split(","))))
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    return f"({value})" if before.isalnum() or after.isalnum() or after in ("^", "!") else value
