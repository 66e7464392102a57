r"""Matrices as they are written, and the values of their sums, products and powers: rows of cells, which are texts.

`array`, `pmatrix`, `bmatrix` and so on are the same; `vmatrix` is a determinant and not a matrix.
"""

import re
from fractions import Fraction

from reward.literals import rational
from reward.notation import squeeze
from reward.splitting import split

# Cells of larger results are longer than any answer.
_MAX_CHARS = 10_000
_MAX_SIZE = 10

Rows = list[list[str]]

_MATRIX = re.compile(
    r"(?P<open>[(\[] ?)?\\begin ?\{(?P<kind>array|(?:[pbB]|small)?matrix)\} ?(?P<body>(?:(?!\\begin).)*?)"
    r"\\end ?\{(?P=kind)\}(?(open) ?[)\]])",
    re.DOTALL,
)
_COLUMNS = re.compile(r" ?\{[^{}]*\}")
# The placeholder of a matrix while the sum is read.
_PLACE = "\0"
_POWER = re.compile(r" ?\^ ?\{ ?(-?[0-9]{1,4}) ?\}")
_NO_FACTOR = re.compile(r"\A\^|[=&|,;<>]|\\(?:begin|end|\{|\})")


def evaluate(text: str) -> Rows | None:
    """The rows of a matrix, of a sum or a product of matrices and numbers; None for anything else.

    Expressions without a value, such as a sum of matrices of different sizes, also give None.
    """
    matrices: list[Rows] = []

    def keep_matrix(match: re.Match[str]) -> str:
        body = match["body"]
        matrices.append(rows(_COLUMNS.sub("", body, count=1) if match["kind"] == "array" else body))
        return _PLACE

    text = _MATRIX.sub(keep_matrix, text.replace(_PLACE, ""))
    total: Rows | None = None
    for is_negative, term in _terms(text):
        value = _term(term, matrices)
        if value is None:
            return None
        if is_negative:
            value = [[_product("-1", cell) for cell in row] for row in value]
        if total is None:
            total = value
        elif [len(row) for row in total] != [len(row) for row in value]:
            return None
        else:
            pairs = zip(total, value, strict=True)
            total = [[_sum([x, y]) for x, y in zip(one, other, strict=True)] for one, other in pairs]
    return total


def rows(body: str) -> Rows:
    """The cells of each row between `&` and `\\\\`."""
    lines = (row for row in re.split(r"\\\\|\\hline(?![A-Za-z])", body) if row.strip())
    return [[cell.strip() for cell in row.split("&")] for row in lines]


def _terms(text: str) -> list[tuple[bool, str]]:
    """(whether it is subtracted, term) for the terms of a sum, which may begin with a sign. Raises Unreadable."""
    pieces, signs = split(text, lambda token: token in ("+", "-"))
    terms = list(zip([False, *(sign == "-" for sign in signs)], pieces, strict=True))
    return terms if pieces[0].strip() else terms[1:]


def _term(term: str, matrices: list[Rows]) -> Rows | None:
    """The product of a term's matrices, which are taken from the front of the list, and of its numbers."""
    before, *pieces = term.split(_PLACE)
    if not pieces:
        return None
    value: Rows | None = None
    scalars = [before]
    for piece in pieces:
        matrix, power = matrices.pop(0), _POWER.match(piece)
        factor = _matrix_power(matrix, int(power[1])) if power else matrix
        value = factor if value is None or factor is None else _matrix_product(value, factor)
        if value is None:
            return None
        scalars.append(piece[power.end() :] if power else piece)
    scalars = [scalar.strip().removeprefix("\\cdot").removesuffix("\\cdot").strip() for scalar in scalars]
    if value is None or any(_NO_FACTOR.search(scalar) or not _is_balanced(scalar) for scalar in scalars):
        return None
    for scalar in filter(None, scalars):
        value = [[_product(scalar, cell) for cell in row] for row in value]
    return value if sum(len(cell) for row in value for cell in row) <= _MAX_CHARS else None


def _matrix_power(matrix: Rows, exponent: int) -> Rows | None:
    """None for a matrix that is not square, a negative power of one without an inverse, and huge results."""
    size = len(matrix)
    if any(len(row) != size for row in matrix):
        return None
    base = matrix if exponent >= 0 else _inverse(matrix)
    power: Rows | None = [["1" if row == column else "0" for column in range(size)] for row in range(size)]
    left = abs(exponent)
    while left and base is not None and power is not None:
        if left % 2:
            power = _matrix_product(power, base)
        left //= 2
        if left:
            base = _matrix_product(base, base)
    return power if base is not None else None


def _inverse(matrix: Rows) -> Rows | None:
    """By elimination in exact numbers; None if a cell is not a number, or there is no inverse."""
    size = len(matrix)
    cells = [[rational(squeeze(cell)) for cell in row] for row in matrix]
    rows = [[cell for cell in row if cell is not None] for row in cells]
    if any(len(row) != size for row in rows) or size > _MAX_SIZE:
        return None
    rows = [row + [Fraction(index == column) for column in range(size)] for index, row in enumerate(rows)]
    for column in range(size):
        pivot = next((row for row in rows[column:] if row[column]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        pivot = [cell / pivot[column] for cell in pivot]
        rows = [[x - row[column] * y for x, y in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(column, pivot)
    return [[str(cell) for cell in row[size:]] for row in rows]


def _is_balanced(text: str) -> bool:
    return all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))


def _matrix_product(first: Rows, second: Rows) -> Rows | None:
    columns = {len(row) for row in second}
    if len(columns) != 1 or any(len(row) != len(second) for row in first):
        return None
    if len(first) * len(second) * max(columns) > _MAX_CHARS or sum(len(c) for row in first for c in row) > _MAX_CHARS:
        return None
    return [
        [_sum([_product(x, row[n]) for x, row in zip(one, second, strict=True)]) for n in range(max(columns))]
        for one in first
    ]


def _product(first: str, second: str) -> str:
    numbers = rational(squeeze(first)), rational(squeeze(second))
    if numbers[0] is not None and numbers[1] is not None:
        return str(numbers[0] * numbers[1])
    if 0 in numbers or 1 in numbers:
        return "0" if 0 in numbers else second if numbers[0] == 1 else first
    return f"({first})\\cdot ({second})"


def _sum(cells: list[str]) -> str:
    numbers = [rational(squeeze(cell)) for cell in cells]
    if all(number is not None for number in numbers):
        return str(sum(number for number in numbers if number is not None))
    return "+".join(f"({cell})" for cell, number in zip(cells, numbers, strict=True) if number != 0)
