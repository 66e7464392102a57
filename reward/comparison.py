r"""Are two answers equal? The structure is compared here; what two expressions are worth is asked of `decide`.

Answers are read as unordered collections (sets, lists without brackets, plus-minus), tuples and intervals (ordered,
with their brackets), unions, relations, matrices, numbers in a base, words, and expressions. Each pair of parts is
compared within its kind, so that math-verify, which confuses kinds and drops subscripts, text and the case of letters,
never sees more than one plain expression.

What is equal by decision, where conventions differ:
- A value without a unit equals the same value with any unit; two different units are unequal (see `notation`).
- `x = 5` equals `5` and `y = 2x+1` equals `2x+1`; `x = 5` and `y = 5` are unequal.
- `{5}` equals `5`; `1, 2` equals `{2, 1}` but neither `(1, 2)` nor `[1, 2]`.
- `1 \le x < 2` equals `[1, 2)`, and `x \in S` equals `S`.
- A number in a base equals the same digits in that base only; a decimal equals exactly what it says: 0.333 is not 1/3.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reward.notation import integer, rational, spell, split_unit, squeeze, words

# decide(first, second, question) says whether two expressions are equal (EQUAL), or whether the first is a multiple of
# the second by a constant that is not zero (MULTIPLE) or is positive (POSITIVE_MULTIPLE).
EQUAL, MULTIPLE, POSITIVE_MULTIPLE = "equal", "multiple", "positive multiple"
Decide = Callable[[str, str, str], bool]

# Matching collections and reading nested ones takes time that grows with the square of these.
MAX_PARTS = 64
MAX_DEPTH = 12

_TOKEN = re.compile(
    r"\\text ?\{[^{}]*\}|\\(?:begin|end)\{[a-zA-Z]*\}|\\[A-Za-z]+|\\.|,? ?\b(?:and|or)\b|[<>]=|!=|.", re.DOTALL
)
_OPEN = {"{", "(", "[", "\\{", "\\langle", "\\lfloor", "\\lceil", "\\begin"}
_CLOSE = {"}", ")", "]", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\end"}
_AND = re.compile(r"(?:\\text ?\{[ ,]*(?:and|or)[ ,]*\}|,? ?(?:and|or)|[,;])\Z")
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "\\le", "\\ge": "\\ge", "<=": "\\le", ">=": "\\ge", "\\ne": "\\ne",
    "!=": "\\ne", "\\in": "\\in",
}  # fmt: skip
_MIRRORED = {">": "<", "\\ge": "\\le"}
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]*\}))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?\Z")
_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_(?:\{([0-9]+)\}|([0-9]))\Z", re.IGNORECASE)
_MATRIX = re.compile(r"\\begin\{([pbB]?|small)matrix\}(.*)\\end\{\1matrix\}\Z", re.DOTALL)
_BASE_WORDS = re.compile(r"_\{?\\text ?\{ ?(two|three|four|five|six|seven|eight|nine|ten) ?\}\}?\Z")
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"
}  # fmt: skip


class Node(NamedTuple):
    """An answer as read. `mark` holds brackets, operators, a base or a unit; `parts` are nodes.

    kind: "collection", "bracket", "union", "relation", "matrix", "row", "based", "words" or "expression";
    the last three have `text` in place of parts.
    """

    kind: str
    mark: str = ""
    parts: tuple["Node", ...] = ()
    text: str = ""


class Unreadable(ValueError):
    """An answer with too many parts or levels."""


def equal(first: str, second: str, decide: Decide) -> bool:
    """Whether two answers as written are equal. Raises what `decide` raises, and nothing else."""
    first, second = spell(first), spell(second)
    if squeeze(first) == squeeze(second):
        return True
    try:
        return _same(read(first), read(second), decide)
    except Unreadable:
        return False


def read(text: str, depth: int = 0) -> Node:
    """The structure of a spelled answer. Raises Unreadable beyond MAX_PARTS or MAX_DEPTH."""
    text = text.strip()
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deep")
    if depth == 0 and rational(squeeze(split_unit(text)[0])) is not None:  # the comma of 1,234 separates nothing
        return _read_one(text, depth)
    elements, _ = _split(text, lambda token: bool(_AND.match(token)))
    elements = [element for element in elements if element.strip()]
    if len(elements) > 1:
        return _collection([read(element, depth + 1) for element in elements])
    text = elements[0].strip() if elements else ""
    sides, operators = _split(text, _RELATIONS.__contains__)
    if operators:
        return _relation([read(side, depth + 1) for side in sides], [_RELATIONS[token] for token in operators])
    parts, _ = _split(text, lambda token: token in ("\\cup", "\\bigcup"))
    if len(parts) > 1:
        return Node("union", parts=tuple(read(part, depth + 1) for part in parts))
    return _read_one(text, depth)


def _read_one(text: str, depth: int) -> Node:
    if text in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return Node("collection")
    if text in ("\\mathbb{R}", "\\R"):
        return Node("bracket", "()", (Node("expression", text="-\\infty"), Node("expression", text="\\infty")))
    said = words(text)
    if said is not None:
        return Node("words", text=said)
    matrix = _MATRIX.match(text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()") else text)
    if matrix:
        rows = (row for row in re.split(r"\\\\", matrix[2]) if row.strip())
        return Node("matrix", parts=tuple(_row(row, depth) for row in rows))
    inner = _enclosed(text)
    if inner is not None:
        opening, closing, content = inner
        elements, commas = _split(content, lambda token: token in (",", ";"))
        if opening == "\\{":
            return _collection([read(element, depth + 1) for element in elements])
        if commas:
            return Node("bracket", opening + closing, tuple(read(element, depth + 1) for element in elements))
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
    value, unit = split_unit(text)
    if unit and value != text:
        return _with_unit(read(value, depth + 1), unit)
    return _expression(squeeze(value))


def _row(row: str, depth: int) -> Node:
    cells, _ = _split(row, "&".__eq__)
    return Node("row", parts=tuple(read(cell, depth + 1) for cell in cells))


def _with_unit(node: Node, unit: str) -> Node:
    return node._replace(mark=unit) if node.kind == "expression" and not node.mark else node


def _expression(text: str) -> Node:
    text = _BASE_WORDS.sub(lambda found: f"_{{{_BASES[found[1]]}}}", text)
    based = _BASED.match(text)
    if based and any(character.isdigit() for character in based[1]):
        digits, base = based[1].upper().lstrip("0"), int(based[2] or based[3])
        if 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits):
            return Node("based", str(base), text=digits)
    return Node("expression", text=integer(text) or text.removeprefix("+"))


def _collection(parts: Sequence[Node]) -> Node:
    """Parts that are collections themselves are joined (1, \\pm 2); a single part stands for itself."""
    flat: list[Node] = []
    for part in parts:
        flat.extend(part.parts if part.kind == "collection" else (part,))
    if len(flat) > MAX_PARTS:
        raise Unreadable("too many parts")
    return flat[0] if len(flat) == 1 else Node("collection", parts=tuple(flat))


def _relation(sides: list[Node], operators: list[str]) -> Node:
    """Sides in the order of < and <=: `3 > x` is read as `x < 3`."""
    if all(operator in _MIRRORED for operator in operators):
        sides, operators = sides[::-1], [_MIRRORED[operator] for operator in operators[::-1]]
    return Node("relation", " ".join(operators), tuple(sides))


def _split(text: str, separates: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """The pieces of `text` between separating tokens outside of all brackets, and those tokens."""
    pieces, separators = [], []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        name = token[0].partition("{")[0] if token[0].startswith(("\\begin", "\\end")) else token[0]
        if name in _OPEN:
            depth += 1
        elif name in _CLOSE:
            depth -= 1
        elif depth == 0 and separates(token[0].strip()):
            pieces.append(text[start : token.start()])
            separators.append(token[0].strip())
            start = token.end()
            if len(pieces) > MAX_PARTS:
                raise Unreadable("too many parts")
    return [*pieces, text[start:]], separators


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening bracket, closing bracket, content) if one pair encloses all of `text`."""
    depth, opening = 0, ""
    for token in _TOKEN.finditer(text):
        name = token[0].partition("{")[0] if token[0].startswith(("\\begin", "\\end")) else token[0]
        if token.start() == 0:
            if name not in ("(", "[", "{", "\\{", "\\langle"):
                return None
            opening = name
        if name in _OPEN:
            depth += 1
        elif name in _CLOSE:
            depth -= 1
            if depth == 0:
                return (opening, name, text[len(opening) : token.start()]) if token.end() == len(text) else None
    return None


def _same(a: Node, b: Node, decide: Decide) -> bool:
    if a == b:
        return True
    if a.kind == "relation" and b.kind == "relation":
        return _same_relation(a, b, decide)
    if a.kind == "relation" or b.kind == "relation":
        relation, other = (a, b) if a.kind == "relation" else (b, a)
        named = _named(relation)
        return named is not None and _same(named[1], other, decide)
    if {a.kind, b.kind} == {"collection", "union"}:
        either, union = (a, b) if a.kind == "collection" else (b, a)
        named_parts = [_named(part) if part.kind == "relation" else None for part in either.parts]
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
        return a.text == b.text or _ask(a.text, b.text, EQUAL, decide)
    if a.kind in ("collection", "union"):
        return _matched(a.parts, b.parts, decide)
    if a.mark != b.mark or a.text != b.text or len(a.parts) != len(b.parts):
        return False
    return all(_same(x, y, decide) for x, y in zip(a.parts, b.parts, strict=True))


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


def _named(relation: Node) -> tuple[str, Node] | None:
    """(variable, what it is or where it lies) for `x = A`, `x \\in A` and inequalities of one variable."""
    operators, sides = relation.mark.split(" "), relation.parts
    names = [side.text if side.kind == "expression" and _NAME.match(side.text) else None for side in sides]
    if operators == ["="]:
        return (names[0], sides[1]) if names[0] else (names[1], sides[0]) if names[1] else None
    if operators == ["\\in"]:
        return (names[0], sides[1]) if names[0] else None
    brackets = {"<": "()", "\\le": "[]"}
    if not all(operator in brackets for operator in operators):
        return None
    if len(operators) == 2 and names[1]:
        opening, closing = brackets[operators[0]][0], brackets[operators[1]][1]
        return names[1], Node("bracket", opening + closing, (sides[0], sides[2]))
    if len(operators) == 1 and names[0]:
        minus_infinity = Node("expression", text="-\\infty")
        return names[0], Node("bracket", "(" + brackets[operators[0]][1], (minus_infinity, sides[1]))
    if len(operators) == 1 and names[1]:
        return names[1], Node(
            "bracket", brackets[operators[0]][0] + ")", (sides[0], Node("expression", text="\\infty"))
        )
    return None


def _same_relation(a: Node, b: Node, decide: Decide) -> bool:
    named_a, named_b = _named(a), _named(b)
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
