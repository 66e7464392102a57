r"""Are two answers equal? The structure is compared here; `decide` compares the values of two expressions.

Answers are of one of these kinds:
- unordered collections: sets, lists without brackets, plus-minus;
- tuples and intervals, which have an order and keep their brackets;
- unions, relations, matrices, numbers in a base, words, and expressions.

Each pair of parts is compared within its kind. math-verify confuses kinds, and drops subscripts, text and the case of
letters, so it never sees more than one plain expression.

Decisions about equality, since conventions differ:
- A value without a unit equals the same value with any unit; two different units are unequal (see `units`).
- `x = 5` equals `5` and `y = 2x+1` equals `2x+1`; `x = 5` and `y = 5` are unequal.
- Capital letters alone are a name: `ABC` and `CAB` are unequal, while `xy` equals `yx`.
- `x = 1, y = 2` equals `y = 2, x = 1`, `(x, y) = (1, 2)`, and the values alone in the order of the names. Symbols go
  by the alphabet, lengths as listed (in a tuple only if that is the alphabet's order). A set of values has no order.
- `{5}` equals `5`; `1, 2` equals `{2, 1}` but neither `(1, 2)` nor `[1, 2]`.
- `1 \le x < 2` equals `[1, 2)`, and `x \in S` equals `S`.
- `\mathbb{R} \setminus \{0\}` equals `(-\infty, 0) \cup (0, \infty)` and `x \ne 0`.
- In `(1,234, 5)` only one comma has a blank, so it is a pair; `(1,234,5)` is a triple.
- A number in a base equals the same digits in that base only; a decimal is exact: 0.333 is not 1/3.
"""

import re
from collections.abc import Callable, Sequence

from reward.named import alphabetical, assignments, solutions
from reward.notation import spell, squeeze
from reward.splitting import Unreadable
from reward.structure import Node, read, solved

# decide(first, second, question) says whether two expressions are equal (EQUAL), or whether the first is a multiple of
# the second by a constant that is not zero (MULTIPLE) or is positive (POSITIVE_MULTIPLE).
EQUAL, MULTIPLE, POSITIVE_MULTIPLE = "equal", "multiple", "positive multiple"
Decide = Callable[[str, str, str], bool]

_NAME_OF_CAPITALS = re.compile(r"[A-Z]{2,}\Z")


def equal(first: str, second: str, decide: Decide) -> bool:
    """Whether two answers as written are equal. Only errors of `decide` are raised."""
    first, second = spell(first), spell(second)
    if squeeze(first) == squeeze(second):
        return True
    try:
        return _same(read(first), read(second), decide)
    except Unreadable:
        return False


def _same(a: Node, b: Node, decide: Decide) -> bool:
    if a == b:
        return True
    solutions_a, solutions_b = solutions(a), solutions(b)
    if solutions_a:
        return _same_solutions(*solutions_a, b, solutions_b, decide)
    if solutions_b:
        return _same_solutions(*solutions_b, a, None, decide)
    named_a, named_b = assignments(a), assignments(b)
    if named_a and named_b:
        first, second = dict(named_a), dict(named_b)
        return first.keys() == second.keys() and all(_same(first[name], second[name], decide) for name in first)
    if named_a or named_b:
        return _are_values(a, named_a, b, decide) if named_a else _are_values(b, named_b or [], a, decide)
    if a.kind == "relation" and b.kind == "relation":
        return _same_relation(a, b, decide)
    if a.kind == "relation" or b.kind == "relation":
        relation, other = (a, b) if a.kind == "relation" else (b, a)
        named = solved(relation)
        return named is not None and _same(named[1], other, decide)
    if {a.kind, b.kind} == {"collection", "union"}:
        either, union = (a, b) if a.kind == "collection" else (b, a)
        named_parts = [solved(part) if part.kind == "relation" else None for part in either.parts]
        if None in named_parts or len({named[0] for named in named_parts if named}) != 1:
            return False
        return _matched([named[1] for named in named_parts if named], union.parts, decide)
    if {a.kind, b.kind} == {"words", "expression"}:
        said, expression = (a, b) if a.kind == "words" else (b, a)
        return said.text == (expression.text if len(expression.text) == 1 else expression.text.lower())
    if a.kind != b.kind:
        return False
    if a.kind == "expression":
        if a.mark and b.mark and a.mark != b.mark:
            return False
        if a.text == b.text:
            return True
        if _NAME_OF_CAPITALS.match(a.text) or _NAME_OF_CAPITALS.match(b.text):
            return False
        return _ask(a.text, b.text, EQUAL, decide)
    if a.kind in ("collection", "union", "cases"):
        return a.mark == b.mark and _matched(a.parts, b.parts, decide)
    if a.mark != b.mark or a.text != b.text or len(a.parts) != len(b.parts):
        return False
    return all(_same(x, y, decide) for x, y in zip(a.parts, b.parts, strict=True))


def _same_solutions(
    names: list[str], rows: list[Node], other: Node, solved_other: tuple[list[str], list[Node]] | None, decide: Decide
) -> bool:
    """Whether solutions such as `x = 1, y = 2 or x = 2, y = 1` equal another list, with names or of pairs without."""
    if solved_other is None:
        listed = other.parts if other.kind == "collection" and not other.mark else ()
        return _matched(rows, listed, decide)
    if sorted(solved_other[0]) != sorted(names):
        return False
    order = [solved_other[0].index(name) for name in names]
    listed = tuple(row._replace(parts=tuple(row.parts[index] for index in order)) for row in solved_other[1])
    return _matched(rows, listed, decide)


def _are_values(node: Node, named: Sequence[tuple[str, Node]], other: Node, decide: Decide) -> bool:
    """Whether unnamed values equal the named ones. Order matters, except in a list of one name's values (x_1, x_2).

    A set has no order. A tuple goes by the alphabet, so it says nothing of lengths that are listed otherwise.
    """
    is_list = other.kind == "collection" and not other.mark
    is_tuple = other.kind == "bracket" and other.mark == "()"
    if not (is_list or is_tuple) or len(named) != len(other.parts):
        return False
    names = [name for name, _ in named]
    if is_list and len({name.partition("_")[0] for name in names}) == 1:
        return _matched([value for _, value in named], other.parts, decide)
    if (is_list and other.text) or (
        is_tuple and node.kind == "collection" and names != sorted(names, key=alphabetical)
    ):
        return False
    return all(_same(value, part, decide) for (_, value), part in zip(named, other.parts, strict=True))


def _matched(first: Sequence[Node], second: Sequence[Node], decide: Decide) -> bool:
    """Whether the parts pair off, in any order. Parts that are spelled alike are paired first."""
    if len(first) != len(second):
        return False
    left, right = list(first), list(second)
    for part in first:
        if part in right:
            left.remove(part)
            right.remove(part)
    for part in left:
        partner = next((other for other in right if _same(part, other, decide)), None)
        if partner is None:
            return False
        right.remove(partner)
    return True


def _same_relation(a: Node, b: Node, decide: Decide) -> bool:
    named_a, named_b = solved(a), solved(b)
    if named_a and named_b and named_a[0] == named_b[0]:
        return _same(named_a[1], named_b[1], decide)
    if a.mark != b.mark or len(a.parts) != len(b.parts):
        return False
    if all(x == y for x, y in zip(a.parts, b.parts, strict=True)):
        return True
    if len(a.parts) == 2 and a.mark != "\\in":
        if any(side.kind != "expression" for side in a.parts + b.parts):
            return False
        question = POSITIVE_MULTIPLE if a.mark in ("<", "\\le") else MULTIPLE
        first, second = (f"{node.parts[0].text}-({node.parts[1].text})" for node in (a, b))
        return _ask(first, second, question, decide)
    return all(_same(x, y, decide) for x, y in zip(a.parts, b.parts, strict=True))


def _ask(first: str, second: str, question: str, decide: Decide) -> bool:
    """In one order, so that the answer is the same for both orders."""
    first, second = sorted((first, second))
    return decide(first, second, question)
