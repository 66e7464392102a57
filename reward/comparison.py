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
- `x = 1, y = 2` equals `y = 2, x = 1`, `(x, y) = (1, 2)`, and the values alone in the order in which they are listed;
  those of `x_1 = 1, x_2 = 2` have no order.
- `{5}` equals `5`; `1, 2` equals `{2, 1}` but neither `(1, 2)` nor `[1, 2]`. A list of one value in several spellings
  equals the value: `x+1, 1+x` but not `1, 1`.
- `1 \le x < 2` equals `[1, 2)`, and `x \in S` equals `S`.
- `\mathbb{R} \setminus \{0\}` equals `(-\infty, 0) \cup (0, \infty)` and `x \ne 0`.
- In `(1,234, 5)` only one comma has a blank, so it is a pair; `(1,234,5)` is a triple.
- A number in a base equals the same digits in that base only; a decimal is exact: 0.333 is not 1/3.
"""

import re
from collections.abc import Callable, Sequence

from reward.notation import spell, squeeze
from reward.splitting import Unreadable
from reward.structure import Node, find_name, read, solve_relation

# decide(first, second, question) says whether two expressions are equal (EQUAL), or whether the first is a multiple of
# the second by a constant that is not zero (MULTIPLE) or is positive (POSITIVE_MULTIPLE).
EQUAL, MULTIPLE, POSITIVE_MULTIPLE = "equal", "multiple", "positive multiple"
Decide = Callable[[str, str, str], bool]

# Of two kinds that can be equal, the one that decides how they are compared.
_FIRST = {"relation": 0, "collection": 1, "words": 2}
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
    a, b = sorted((_group_solutions(a), _group_solutions(b)), key=lambda node: _FIRST.get(node.kind, len(_FIRST)))
    named_a, named_b = _named_values(a), _named_values(b)
    if named_a and named_b:
        return named_a.keys() == named_b.keys() and all(_same(named_a[name], named_b[name], decide) for name in named_a)
    if named_a or named_b:
        return _are_values(named_a, b, decide) if named_a else _are_values(named_b, a, decide)
    if a.kind == b.kind == "relation":
        return _same_relation(a, b, decide)
    if a.kind == "relation":
        named = solve_relation(a)
        return named is not None and _same(named[1], b, decide)
    if (a.kind, b.kind) == ("collection", "union"):
        named_parts = [solve_relation(part) if part.kind == "relation" else None for part in a.parts]
        if None in named_parts or len({named[0] for named in named_parts if named}) != 1:
            return False
        return _match_parts([named[1] for named in named_parts if named], b.parts, decide)
    if a.kind == "collection" and b.kind != "collection":
        is_one = len(set(a.parts)) == len(a.parts) > 0 and not a.mark  # two alike are meant: 1, 1
        return is_one and all(_same(part, b, decide) for part in a.parts)
    if (a.kind, b.kind) == ("words", "expression"):
        return a.text == (b.text if len(b.text) == 1 else b.text.lower())
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
        return a.mark == b.mark and _match_parts(a.parts, b.parts, decide)
    if a.mark != b.mark or a.text != b.text or len(a.parts) != len(b.parts):
        return False
    return all(_same(x, y, decide) for x, y in zip(a.parts, b.parts, strict=True))


def _group_solutions(node: Node) -> Node:
    """`x = 1, y = 2, x = 2, y = 1` as a collection of two solutions, which are collections; other nodes unchanged."""
    pairs = [solve_relation(part) if part.kind == "relation" else None for part in node.parts]
    names = [pair[0] for pair in pairs if pair]
    size = len(set(names))
    if node.kind != "collection" or not 1 < size < len(names) or names[:size] * (len(pairs) // size) != names:
        return node
    starts = range(0, len(names), size)
    return node._replace(parts=tuple(node._replace(parts=node.parts[at : at + size]) for at in starts))


def _named_values(node: Node) -> dict[str, Node]:
    """The values of `x = 1, y = 2` or `(x, y) = (1, 2)` by their names; {} for `x = 1, x = 2` and anything else."""
    if node.kind == "relation" and node.mark == "=" and all(part.kind == "bracket" for part in node.parts):
        names, values = (part.parts for part in node.parts)
        pairs = list(zip(map(find_name, names), values, strict=False)) if len(names) == len(values) else []
    else:
        parts = node.parts if node.kind == "collection" else ()
        pairs = [
            (part.kind == "relation" and part.mark == "=" and solve_relation(part)) or (None, part) for part in parts
        ]
    named = {name: value for name, value in pairs if name}
    return named if len(named) == len(pairs) > 1 else {}


def _are_values(named: dict[str, Node], other: Node, decide: Decide) -> bool:
    """Whether a list or a tuple has the named values, in their order unless they are all of one letter: x_1, x_2."""
    is_list = other.kind == "collection" and not other.mark
    if is_list and len({name.partition("_")[0] for name in named}) == 1:
        return _match_parts(tuple(named.values()), other.parts, decide)
    if not (is_list and not other.text) and not (other.kind == "bracket" and other.mark == "()"):
        return False
    return len(named) == len(other.parts) and all(map(lambda x, y: _same(x, y, decide), named.values(), other.parts))


def _match_parts(first: Sequence[Node], second: Sequence[Node], decide: Decide) -> bool:
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
    named_a, named_b = solve_relation(a), solve_relation(b)
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
