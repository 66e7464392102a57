r"""The parts of a spelled answer: collections, tuples, intervals, relations, matrices, and plain expressions."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from reward import matrices
from reward.literals import integer, parse_in_base, rational, replace_divisors
from reward.notation import squeeze, words
from reward.splitting import MAX_PARTS, Unreadable, merge_elements, split, split_enclosed, split_list, split_relation
from reward.units import scale_number, split_unit

# Reading nested brackets takes time that grows with the square of this.
MAX_DEPTH = 12

_THOUSANDS = re.compile(r"(?<![0-9.,])(?<!_\{)(?!0+,)[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_LISTING = re.compile(r"[(\[][^()\[\]]*,|\\(?:\{|langle)[^}]*,")
_MIRRORED = {">": "<", "\\ge": "\\le"}
_POINTS = r"[A-Z]{1,4}(?:_\{[A-Za-z0-9]+\})?"
_NAME = re.compile(
    r"(?:[A-Z]{2,4}|\|[A-Z]{2}\||\\overline\{[A-Z]{2}\}|m?\\angle ?[A-Z]{1,3}|[A-Za-z]|\\[a-z]+)"
    r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]*\}))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?\Z"
    rf"|{_POINTS}[:/]{_POINTS}\Z|\\frac\{{{_POINTS}\}}\{{{_POINTS}\}}\Z"
)
# Intervals in brackets alone, where one that is turned around is open: [0, 1[.
_INTERVAL = r"([\[\]])([^\[\]()]*,[^\[\]()]*)([\[\]])"
_INTERVALS = re.compile(rf"(?:{_INTERVAL} ?(?:\\cup ?|\Z))+\Z")
# Capital letters or Roman numerals that one \\text lists.
_LISTED = re.compile(r"\\text ?\{ ?((?:[A-Z]{1,4}(?: ?, ?(?:and |or )?| and | or |(?= ?\}))){2,}) ?\}\Z")
_CASES = re.compile(
    r"(?:\\begin ?\{cases\}|(?P<brace>\\\{) ?\\begin ?\{array\} ?\{[^{}]*\})(?P<body>(?:(?!\\begin).)*)"
    r"(?(brace)\\end ?\{array\}|\\end ?\{cases\}) ?\.?\Z",
    re.DOTALL,
)
# The word before the condition of a case.
_CONDITION = re.compile(r"\A(?P<text>\\text ?\{ ?)?(?:if|when|for|where)(?![A-Za-z]) ?(?(text)(?P<words>[^{}]*)\} ?)")
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
# The part of a set before its condition.
_SUCH_THAT = re.compile(
    r" ?[A-Za-z](?: ?\\in ?\\mathbb\{R\})? ?(?:\||:|\\(?:mid|vert|colon)(?![A-Za-z])) ?(.+)\Z", re.DOTALL
)


class Node(NamedTuple):
    """An answer as read. `mark` holds brackets, operators, a base or a unit; `parts` are nodes.

    A collection with a mark is a set that is one element of something, and not its elements. One with the text "{}" is
    written with the braces of a set and equals the same list without them.

    kind: "collection", "bracket", "union", "relation", "matrix", "difference", "cases", "row", "based", "words" or
    "expression". The last three have `text` in place of parts.
    """

    kind: str
    mark: str = ""
    parts: tuple["Node", ...] = ()
    text: str = ""


_MINUS_INFINITY, _INFINITY = Node("expression", text="-\\infty"), Node("expression", text="\\infty")
_REALS = Node("bracket", "()", (_MINUS_INFINITY, _INFINITY))


def read(text: str, depth: int = 0) -> Node:
    """The structure of a spelled answer. Raises Unreadable beyond MAX_PARTS or MAX_DEPTH."""
    text = _LISTED.sub(r"\1", text.strip())
    if text.startswith(("[", "]")) and _INTERVALS.match(text):
        text = re.sub(_INTERVAL, lambda ends: "[("[ends[1] == "]"] + ends[2] + "])"[ends[3] == "["], text)
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deep")
    if depth == 0 and "," in text:
        text = _remove_thousands(text)
    elements = [element for element in split_list(text) if element.strip()]
    if len(elements) > 1:
        return _collection(_elements(elements, depth))
    text = elements[0].strip() if elements else ""
    sides, operators = split_relation(text)
    if operators:
        return _relation([read(side, depth + 1) for side in sides], operators)
    parts, _ = split(text, "\\setminus".__eq__)
    if len(parts) == 2:
        return _difference(read(parts[0], depth + 1), read(parts[1], depth + 1))
    parts, _ = split(text, lambda token: token in ("\\cup", "\\bigcup"))
    if len(parts) > 1:
        return Node("union", parts=tuple(read(part, depth + 1) for part in parts))
    return _read_one(text, depth)


def _remove_thousands(text: str) -> str:
    """The text without commas if each of them belongs to a number such as 1,234, outside of all brackets."""
    joined = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return text if "," in joined or _LISTING.search(text) or len(split_list(joined)) > 1 else joined


def _read_one(text: str, depth: int) -> Node:
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return Node("collection")
    if text == "\\mathbb{R}":
        return _REALS
    said = words(text)
    if said is not None:
        return Node("words", text=said)
    if cases := _CASES.match(text):
        return _cases(matrices.rows(cases["body"]), depth)
    rows = matrices.evaluate(text) if "\\begin" in text else None
    if rows is not None:
        cells = [tuple(read(cell, depth + 1) for cell in row) for row in rows]
        return Node("matrix", parts=tuple(Node("row", parts=row) for row in cells))
    inner = split_enclosed(text)
    if inner is not None:
        opening, closing, content = inner
        pieces, commas = split(content, lambda token: token in (",", ";"))
        elements = merge_elements(pieces, commas)
        if opening == "\\{":
            such_that = _SUCH_THAT.match(content)
            if such_that:
                condition = read(such_that[1], depth + 1)
                named = solve_relation(condition) if condition.kind == "relation" else None
                return named[1] if named else condition
            members = _collection(_elements(elements, depth))
            is_set = members.kind == "collection" and not members.mark
            return members._replace(text="{}") if is_set else members
        if commas:
            return Node("bracket", opening + closing, tuple(_elements(elements, depth)))
        if opening + closing in ("()", "{}"):
            return read(content, depth + 1)
    if "\\pm" in text or "\\mp" in text:
        signs = (("\\pm", "+", "-"), ("\\mp", "-", "+"))
        plus = minus = text
        for command, above, below in signs:
            plus = re.sub(rf"\{command}(?![A-Za-z])", above, plus)
            minus = re.sub(rf"\{command}(?![A-Za-z])", below, minus)
        if plus != text:
            return _collection([read(plus, depth + 1), read(minus, depth + 1)])
    value, unit = split_unit(scale_number(text))
    if unit and value != text:
        node = read(value, depth + 1)
        return node._replace(mark=unit) if node.kind == "expression" and not node.mark else node
    return _expression(replace_divisors(squeeze(value)))


def _cases(rows: matrices.Rows, depth: int) -> Node:
    """Values with their conditions; equations without conditions are a list."""
    if all(len(row) == 1 for row in rows):
        return _collection([read(row[0], depth + 1) for row in rows])
    parts = []
    for row in rows:
        value, *conditions = [cell.strip(" ,;.") for cell in row]
        nodes = [read(value, depth + 1), *(_condition(condition, depth) for condition in conditions)]
        parts.append(Node("row", parts=tuple(nodes)))
    return Node("cases", parts=tuple(parts))


def _condition(text: str, depth: int) -> Node:
    """A condition with words is compared by its words: `n \\text{ is even}` is `\\text{if n is even}`."""
    text = _CONDITION.sub(lambda match: match["words"] or "", text)
    if not re.search(r"\\text|[a-z]{3}", text) or re.search(r"[=<>]|\\(?:le|ge|ne|in)(?![a-z])", text):
        return read(text, depth + 1)
    said = " ".join(_TEXT.sub(r" \1 ", text).split()).lower()
    said = said.rstrip(" ,;.")
    return Node("words", text="otherwise" if said in ("else", "elsewhere") else said)


def _difference(whole: Node, removed: Node) -> Node:
    """A set without the elements of another one; intervals for the reals without some rational numbers."""
    elements = removed.parts if removed.kind == "collection" else (removed,)
    values = ((rational(element.text), element) for element in elements if element.kind == "expression")
    numbers = {number: element for number, element in values if number is not None}
    if whole != _REALS or not len(numbers) == len(elements) > 0:
        return Node("difference", parts=(whole, Node("collection", "{}", elements)))
    ends = [_MINUS_INFINITY, *(numbers[number] for number in sorted(numbers)), _INFINITY]
    return Node("union", parts=tuple(Node("bracket", "()", pair) for pair in pairwise(ends)))


def _expression(text: str) -> Node:
    if based := parse_in_base(text):
        digits, base = based
        return Node("expression", text=digits or "0") if base == 10 else Node("based", str(base), text=digits)
    return Node("expression", text=integer(text) or text.removeprefix("+").replace(", ", ","))


def _elements(texts: Sequence[str], depth: int) -> list[Node]:
    r"""The elements of a collection or tuple. A set among them is marked, so that it is one element: {{1, 2}, 3}."""
    nodes = []
    for text in texts:
        node, inner = read(text, depth + 1), split_enclosed(text.strip())
        if (inner and inner[0] == "\\{") or text.strip() == "\\emptyset":
            node = Node("collection", "{}", node.parts if node.kind == "collection" and not node.mark else (node,))
        nodes.append(node)
    return nodes


def _collection(parts: Sequence[Node]) -> Node:
    """Parts that are lists themselves are joined (1, \\pm 2), sets are not; a single part stands for itself."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if part.kind == "collection" and not part.mark else (part,))
    if len(flat) > MAX_PARTS:
        raise Unreadable("too many parts")
    return flat[0] if len(flat) == 1 else Node("collection", parts=tuple(flat))


def _relation(sides: list[Node], operators: list[str]) -> Node:
    """Sides in the order of < and <=: `3 > x` is read as `x < 3`."""
    if all(operator in _MIRRORED for operator in operators):
        sides, operators = sides[::-1], [_MIRRORED[operator] for operator in operators[::-1]]
    return Node("relation", " ".join(operators), tuple(sides))


def find_name(side: Node) -> str | None:
    """The name that a side is, or the names in the tuple that it is."""
    if side.kind == "bracket" and side.mark == "()":
        names = [find_name(part) for part in side.parts]
        return None if None in names else f"({','.join(map(str, names))})"
    return side.text if side.kind == "expression" and _NAME.match(side.text) else None


def solve_relation(relation: Node) -> tuple[str, Node] | None:
    """(variable, its value or the set it lies in) for `x = A`, `x \\in A` and inequalities of one variable."""
    operators, sides = relation.mark.split(" "), relation.parts
    names = [find_name(side) for side in sides]
    if operators == ["="]:
        return (names[0], sides[1]) if names[0] else (names[1], sides[0]) if names[1] else None
    if operators == ["\\in"]:
        return (names[0], sides[1]) if names[0] else None
    if operators == ["\\ne"] and names[0]:
        rest = _difference(_REALS, sides[1])
        return (names[0], rest) if rest.kind == "union" else None
    brackets = {"<": "()", "\\le": "[]"}
    if not all(operator in brackets for operator in operators):
        return None
    if len(operators) == 2 and names[1]:
        opening, closing = brackets[operators[0]][0], brackets[operators[1]][1]
        return names[1], Node("bracket", opening + closing, (sides[0], sides[2]))
    if len(operators) == 1 and names[0]:
        return names[0], Node("bracket", "(" + brackets[operators[0]][1], (_MINUS_INFINITY, sides[1]))
    if len(operators) == 1 and names[1]:
        return names[1], Node("bracket", brackets[operators[0]][0] + ")", (sides[0], _INFINITY))
    return None
