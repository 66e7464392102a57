r"""Plain expressions: comparison without algebra, and the text that the algebra reads.

`decide_cheaply` knows exact numbers. It refuses other texts than plain expressions, which are equal only if they are
spelled alike. It also refuses absurdly large numbers, since a tower of powers or the factorial of a factorial equals no
gold answer that is spelled differently. The remaining expressions are small, and a worker that hangs is killed.
"""

import re
from fractions import Fraction

from reward.comparison import EQUAL
from reward.literals import rational, scientific
from reward.structure import MAX_DEPTH

# An exponent or a factorial above this has tens of thousands of digits.
MAX_EXPONENT = 10_000
# A tower of more exponents, or a power of a power of a sum beyond this, takes longer than any answer is worth.
MAX_HEIGHT = 2
MAX_NESTED = 1_000

GREEK = (
    "alpha|beta|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|"
    "omega|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega"
)
# \gamma is missing: it is read as Euler's constant. So are \prime, text, subscripts of numbers: they are dropped.
_PLAIN = re.compile(
    r"(?:[0-9A-Za-z+\-/^_(){}|!. °]|\\sqrt\[[0-9]+\]|\\(?:frac|sqrt|binom|pi|sin|cos|tan|cot|sec|csc|arcsin|arccos|"
    rf"arctan|sinh|cosh|tanh|log|ln|exp|cdot|lfloor|rfloor|lceil|rceil|{GREEK})(?![A-Za-z]))+\Z"
)
# Four letters are a word; a number with a subscript is in a base; "3 3" and "1.2.3" are no numbers, and "2^3^2" is no
# power: LaTeX refuses it.
_NOT_PLAIN = re.compile(
    r"(?<!\\)(?<![A-Za-z])[A-Za-z]{4,}|[0-9)}]_|[0-9] [0-9]|\.[0-9]*\.|!!|\^\^"
    r"|\^(?:[0-9A-Za-z]|\{[^{}]*\})\^|\Z(?<=[+\-/^_(.])"
)
_EXPONENT = re.compile(r"\^[{(-]*([0-9]+(?:\^[{(]*[0-9]+)*)")
_FACTORIAL = re.compile(r"([0-9]+)!")
_TOWER = re.compile(r"![)}]*!|\^\{?[0-9]+\}?!|\^[{(]*[0-9]+!|\^[0-9A-Za-z]\^[0-9A-Za-z]\^")
_GROWTH = re.compile(
    r"(?P<up>\^|\\(?:exp|sinh|cosh)(?![A-Za-z]))(?:(?=[{(]*(?P<n>[0-9]+)))?|(?P<open>[({])|(?P<close>[)}])|[^ ]"
)
_BINOMIAL = re.compile(r"\\binom\{?([0-9]+)")

_MIXED = re.compile(r"(?<![0-9.^_}])([0-9]+)(?:\\frac\{([0-9]+)\}\{([0-9]+)\}| ([0-9]+)/([0-9]+))")
_DECIMAL = re.compile(r"[0-9]*\.[0-9]*")
# The parser takes I for the imaginary unit, which is i here, and 2E+1 for 20. Answers never hold the new names.
_CAPITAL = re.compile(r"(\\[A-Za-z]+)|[EI]")
_RENAMED = {"E": "\\Upsilon ", "I": "\\Xi "}
_FUNCTION = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|exp)h?"
# To the parser, a function without brackets also takes the factors and functions that follow a `\cdot`.
_FACTOR_BEFORE = re.compile(rf"\\cdot ?(?={_FUNCTION}(?![A-Za-z]))")
# A function with an index or a power does not multiply its argument.
_PRODUCT = re.compile(
    _FUNCTION.join(("(", r"(?:[_^]\{(?:[^{}]|\{[^{}]*\})*\})+)"))
    + r"|((?<![A-Za-z\\])[A-Za-eh-z]|(?<![a-z])[0-9)}])(?=\(|\\frac)"
)


def decide_cheaply(first: str, second: str, question: str) -> bool | None:
    """The verdict on two expressions that are spelled differently, None if it takes algebra."""
    if question == EQUAL:
        numbers = rational(first), rational(second)
        if None not in numbers:
            return numbers[0] == numbers[1]
    if not all(is_plain(text) and not is_absurd(text) for text in (first, second)):
        return False
    return None


def is_plain(text: str) -> bool:
    """Whether a parser of LaTeX reads a squeezed text correctly."""
    mixed_read = _MIXED.sub("1", text)
    if not _PLAIN.match(mixed_read) or _NOT_PLAIN.search(mixed_read):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "({") - (character in ")}")
        deepest = max(deepest, depth)
    return depth == 0 and deepest <= MAX_DEPTH and text.count("|") <= MAX_DEPTH


def is_absurd(text: str) -> bool:
    """Whether it holds a tower of powers or factorials, or a number of more than tens of thousands of digits."""
    if (
        _TOWER.search(text)
        or _is_tower(text)
        or any(_exceeds(n) for n in _FACTORIAL.findall(text) + _BINOMIAL.findall(text))
    ):
        return True
    return any(_exceeds(*re.findall("[0-9]+", tower)) for tower in _EXPONENT.findall(text))


def _is_tower(text: str) -> bool:
    """Whether exponents stand on exponents beyond MAX_HEIGHT, or powers of powers multiply beyond MAX_NESTED."""
    height, raised = [0], False  # of each open group, the exponents that it is in
    power, closed = [1], 1  # of each open group and of the one just closed, the largest product of nested exponents
    for token in _GROWTH.finditer(text):
        if token["up"] and token["n"]:
            exponent = closed * min(int(token["n"]), MAX_EXPONENT)
            power[-1] = max(power[-1], exponent)
            if closed > 1 and exponent > MAX_NESTED:
                return True
        if height[-1] + bool(token["up"]) > MAX_HEIGHT:
            return True
        closed = 1
        if token["open"]:
            height.append(height[-1] + raised)
            power.append(1)
        elif token["close"] and len(power) > 1:
            height.pop()
            closed = power.pop()
            power[-1] = max(power[-1], closed)
        raised = bool(token["up"])
    return False


def _exceeds(*tower: str) -> bool:
    """Whether a ^ (b ^ (c ...)) is above MAX_EXPONENT."""
    value = 1
    for digits in reversed(tower):
        number = int(digits)
        if number > 1 and value > MAX_EXPONENT.bit_length():
            return True
        value = number**value
    return value > MAX_EXPONENT


def rewrite_for_parser(text: str) -> str:
    r"""The same expression for latex2sympy: mixed numbers, decimals and products spelled out.

    That parser reads `2(3)` as a mixed number and decimals as floats, and drops degree signs.
    """
    if (number := scientific(text)) is not None:
        return _as_fraction(number)
    text = _FACTOR_BEFORE.sub(" ", text)
    text = _CAPITAL.sub(lambda match: match[1] or _RENAMED[match[0]], text)
    text = _MIXED.sub(_rewrite_mixed, text)
    text = _DECIMAL.sub(_rewrite_decimal, text)
    text = text.replace("°", "\\cdot\\frac{\\pi}{180}")
    return _PRODUCT.sub(lambda match: match[1] or f"{match[2]}\\cdot ", text)


def _rewrite_mixed(match: re.Match[str]) -> str:
    p, q = match[2] or match[4], match[3] or match[5]
    return f"({match[1]}+\\frac{{{p}}}{{{q}}})" if 0 < int(p) < int(q) else f"{match[1]}\\cdot \\frac{{{p}}}{{{q}}}"


def _rewrite_decimal(match: re.Match[str]) -> str:
    number = rational(match[0])
    return match[0] if number is None else _as_fraction(number)


def _as_fraction(number: Fraction) -> str:
    return f"\\frac{{{number.numerator}}}{{{number.denominator}}}"
