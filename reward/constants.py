r"""Equality of constants: `1+10^{-95}` is not 1, and `\sqrt{3+2\sqrt{2}}` is `1+\sqrt{2}`.

Two constants are computed to so many digits that no difference can hide behind them. For algebraic numbers
this is a proof: the difference is zero, or larger than the bound of Burnikel, Funke, Mehlhorn, Schirra and Schmitt
(A separation bound for real algebraic expressions, 2001). No bound is known for other numbers, such as `\pi` and
logarithms; they count with their own size, so that every digit of the integers in an expression is seen.
"""

import math

import sympy

# Pairs that need more digits count as unequal.
MAX_DIGITS = 20_000
MIN_DIGITS = 100


def evaluate(expression: sympy.Expr) -> sympy.Expr:
    """The expression with sums, products and powers of its numbers carried out."""
    return sympy.bottom_up(expression, lambda part: part.func(*part.args) if part.args else part)


def are_equal(a: sympy.Expr, b: sympy.Expr) -> bool | None:
    """Whether two constants are equal. None if they have no finite value."""
    difference = evaluate(a - b)
    if difference.is_Rational:
        return bool(difference == 0)
    numerator, denominator, degrees = _size(difference)
    degree = math.prod(degrees.values())
    if not math.isfinite(numerator + denominator):
        return None
    separation = max(MIN_DIGITS, math.ceil((denominator + (degree - 1) * numerator) * math.log10(2)) + 5)
    digits = separation + math.ceil((numerator + denominator) * math.log10(2)) + 20
    if digits > MAX_DIGITS:
        return False
    values = [expression.evalf(digits, maxn=4 * digits) for expression in (a, b)]
    if not all(value.is_number and value.is_finite for value in values):
        return None
    return bool(abs(values[0] - values[1]) < sympy.Float(10, digits) ** -separation)


def _size(expression: sympy.Expr) -> tuple[float, float, dict[sympy.Expr, int]]:
    """Bounds for numerator and denominator with all their conjugates, in bits, and the degrees of the roots in them."""
    if expression.is_Rational:
        return math.log2(max(1, abs(expression.p))), math.log2(expression.q), {}
    if expression is sympy.I:
        return 0.0, 0.0, {expression: 2}
    if expression.is_Add or expression.is_Mul:
        sizes = [_size(part) for part in expression.args]
        degrees = {root: degree for _, _, part in sizes for root, degree in part.items()}
        below = sum(denominator for _, denominator, _ in sizes)
        if expression.is_Mul:
            return sum(numerator for numerator, _, _ in sizes), below, degrees
        return max(above + below - own for above, own, _ in sizes) + math.log2(len(sizes)), below, degrees
    if expression.is_Pow and expression.exp.is_Rational:
        above, below, degrees = _size(expression.base)
        power, root = abs(expression.exp.p), expression.exp.q
        above, below = power * above, power * below
        if expression.exp < 0:
            above, below = below, above
        if root > 1:
            degrees = degrees | {expression.base ** sympy.Rational(1, root): root}
            if above >= below:
                above = (above + (root - 1) * below) / root
            else:
                below = (below + (root - 1) * above) / root
        return above, below, degrees
    if isinstance(expression, (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec, sympy.csc)):
        turns = expression.args[0] / sympy.pi
        if turns.is_Rational:  # of (z + 1/z)/2 and quotients of such, where z is a root of unity
            return 2.0, 2.0, {sympy.exp(sympy.I * sympy.pi / turns.q): 4 * turns.q}
    return _size_of_value(expression)


def _size_of_value(expression: sympy.Expr) -> tuple[float, float, dict[sympy.Expr, int]]:
    """For numbers that may not be algebraic: their size, and the digits of what they are made of."""
    value = abs(expression.evalf(15))
    if not value.is_Float or not value:
        return (0.0, 0.0, {}) if not value else (math.inf, math.inf, {})
    bits = float(sympy.log(value, 2).evalf(15))
    inner = [_size(part) for part in expression.args]
    digits = sum(above + below for above, below, _ in inner)
    degrees = {root: degree for _, _, part in inner for root, degree in part.items()}
    return max(bits, 0.0) + digits, max(-bits, 0.0) + digits, degrees
