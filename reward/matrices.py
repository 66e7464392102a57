r"""Matrices as they are written, and what sums and products of them are: rows of cells, which are texts again.

`array`, `pmatrix`, `bmatrix` and so on are the same; `vmatrix` is a determinant and no matrix.
"""

import re

from reward.literals import rational
from reward.notation import squeeze

# Cells of larger results are longer than any answer.
_MAX_CHARS = 10_000

Rows = list[list[str]]

_MATRIX = re.compile(
    r"(?P<open>[(\[] ?)?\\begin ?\{(?P<kind>array|(?:[pbB]|small)?matrix)\} ?(?P<body>(?:(?!\\begin).)*?)"
    r"\\end ?\{(?P=kind)\}(?(open) ?[)\]])",
    re.DOTALL,
)
_COLUMNS = re.compile(r" ?\{[^{}]*\}")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
# What stands for a matrix while the sum is read.
_PLACE = "\0"
_NO_FACTOR = re.compile(r"\A\^|[=&|,;<>]|\\(?:begin|end|\{|\})")


def evaluate(text: str) -> Rows | None:
    """The rows of a matrix, of a sum or a product of matrices and numbers; None for anything else.

    What has no value, such as a sum of matrices of different sizes, is None, too.
    """
    matrices: list[Rows] = []

    def kept(found: re.Match[str]) -> str:
        body = found["body"]
        matrices.append(_rows(_COLUMNS.sub("", body, count=1) if found["kind"] == "array" else body))
        return _PLACE

    text = _MATRIX.sub(kept, text.replace(_PLACE, ""))
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


def _rows(body: str) -> Rows:
    rows = (row for row in re.split(r"\\\\|\\hline(?![A-Za-z])", body) if row.strip())
    return [[cell.strip() for cell in row.split("&")] for row in rows]


def _terms(text: str) -> list[tuple[bool, str]]:
    """(whether it is subtracted, term) for the terms of a sum."""
    terms: list[tuple[bool, str]] = []
    is_negative, depth, term = False, 0, ""
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        if depth == 0 and token in "+-":
            if term.strip() or terms:
                terms.append((is_negative, term))
            is_negative, term = token == "-", ""
        else:
            term += token
    return [*terms, (is_negative, term)]


def _term(term: str, matrices: list[Rows]) -> Rows | None:
    """The product of a term's matrices, which are taken from the front of the list, and of its numbers."""
    scalars = [factor.strip().removeprefix("\\cdot").removesuffix("\\cdot").strip() for factor in term.split(_PLACE)]
    if len(scalars) == 1 or any(_NO_FACTOR.search(scalar) or not _is_balanced(scalar) for scalar in scalars):
        return None
    value = matrices.pop(0)
    for _ in scalars[2:]:
        product = _matrix_product(value, matrices.pop(0))
        if product is None:
            return None
        value = product
    for scalar in filter(None, scalars):
        value = [[_product(scalar, cell) for cell in row] for row in value]
    return value if sum(len(cell) for row in value for cell in row) <= _MAX_CHARS else None


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
    return f"({first})\\cdot ({second})"


def _sum(cells: list[str]) -> str:
    numbers = [rational(squeeze(cell)) for cell in cells]
    if all(number is not None for number in numbers):
        return str(sum(number for number in numbers if number is not None))
    return "+".join(f"({cell})" for cell in cells)
