"""Values that an answer gives names: `x = 1, y = 2`, `(x, y) = (1, 2)`, and several solutions of that kind."""

import re

from reward.structure import Node, name_of, solved

_SYMBOL = re.compile(r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]*\}))?'*\Z")


def assignments(node: Node) -> list[tuple[str, Node]] | None:
    """(name, value) for each of `x = 1, y = 2` or of `(x, y) = (1, 2)`; None for `x = 1, x = 2` and anything else.

    The tuple gives the order of its names. Symbols that a list names are put in the order of the alphabet, which is
    that of coordinates. Other names, such as lengths, stay as they are listed.
    """
    if node.kind == "relation" and node.mark == "=":
        names, values = (part.parts if part.kind == "bracket" and part.mark == "()" else () for part in node.parts)
        pairs = [(name_of(name), value) for name, value in zip(names, values, strict=False)]
        if len(names) != len(values):
            return None
    elif node.kind == "collection" and all(part.kind == "relation" and part.mark == "=" for part in node.parts):
        pairs = [solved(part) or (None, part) for part in node.parts]
    else:
        return None
    named = [(name, value) for name, value in pairs if name]
    if not len(named) == len(pairs) == len(dict(named)) > 1:
        return None
    if node.kind == "relation":
        return named
    by_name = dict(named)
    return [(name, by_name[name]) for name in _in_order(list(by_name))]


def _in_order(names: list[str]) -> list[str]:
    return sorted(names, key=alphabetical) if all(map(_SYMBOL.match, names)) else names


def alphabetical(name: str) -> tuple[str, int, str]:
    r"""A key that sorts names: `a`, `b`, `x_2`, `x_{10}`, and `\theta` as the word."""
    base, _, index = name.strip("\\").partition("_")
    digits = index.strip("{}")
    return base, int(digits) if digits.isdecimal() else 0, digits


def solutions(node: Node) -> tuple[list[str], list[Node]] | None:
    """(names, one tuple a solution) for `x = 1, y = 2 or x = 2, y = 1`; None for anything else."""
    if node.kind != "collection" or not all(part.kind == "relation" and part.mark == "=" for part in node.parts):
        return None
    pairs = [pair for pair in map(solved, node.parts) if pair]
    names = _in_order(list(dict.fromkeys(name for name, _ in pairs)))
    size = len(names)
    if len(pairs) != len(node.parts) or size < 2 or len(pairs) <= size or len(pairs) % size:
        return None
    rows = [dict(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    if any(len(row) != size for row in rows):
        return None
    return names, [Node("bracket", "()", tuple(row[name] for name in names)) for row in rows]
