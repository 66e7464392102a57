r"""Are two answers equal? Their structure is compared here; `decide` compares the values of two expressions.

Lists and sets have no order, tuples and intervals keep their order and brackets. A value without a unit equals the same
value with any unit. `x = 5` equals 5 but not `y = 5`, and `1 \le x < 2` equals `[1, 2)`. A number in a base equals the
same digits in that base only. A decimal is exact.
"""

import re
from collections.abc import Callable, Sequence

from reward.notation import rational, spell, split_unit, squeeze

# decide(first, second, is_multiple): are two expressions equal, or is the first a multiple of the second?
Decide = Callable[[str, str, bool], bool]
MAX_PARTS, MAX_DEPTH = 24, 12

_TOKEN = re.compile(r"\\text ?\{[^{}]*\}|\\(?:begin|end)\{[a-zA-Z]*\}|\\[A-Za-z]+|\\.|[A-Za-z]+|.", re.DOTALL)
_OPEN = re.compile(r"[{(\[]|\\(?:\{|begin\{.*)\Z")
_CLOSE = re.compile(r"[})\]]|\\(?:\}|end\{.*)\Z")
_COMMA = re.compile(r"[,;]\Z|(?:and|or)\Z|\\(?:lor\Z|text ?\{[ ,]*(?:and|or)[ ,]*\}|cr)\Z")
SIGN = re.compile(r"[=<>]|\\(?:le|ge|ne|in)\Z")
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
_BASED = re.compile(rf"(-?[0-9A-F.]+)_\{{\(?(?:\\text\{{)?(?:base ?)?\}}?(\d\d?|{'|'.join(_BASES)})\)?\}}*\Z", re.I)
_LABEL = re.compile(r"\d+(?:-\d+)+\Z")  # a date or a telephone number is no difference
_WORDS = re.compile(r"\\text ?\{([^{}]*)\}\Z|\(?([A-Za-z])\)\Z|([A-Za-z][a-z ]{3,})\Z")
_AS_WRITTEN = re.compile(r"\\text ?\{.*\}\Z|-?\\infty\Z|\\mathbb ?\{?R\}?\Z|\\\{ ?\\\}\Z|\d+(?::\d+)+\Z")
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+(?:_\{(?:[^{}]|\{[^{}]*\})*\})?'*(?:(?<![k-nx-z])\([^()]*\))?|\\text\{.*\}|\([a-z](?:,[a-z])+\)"
    r"|\|.*[A-Za-z].*\|)\Z"
)
# What the parser of LaTeX reads rightly. Four letters are a word, "3 3" and "1.2.3" are no numbers.
_PLAIN = re.compile(
    r"(?:[0-9A-Za-z+\-/^_(){}|!. °]|\\sqrt\[\d+\]|\\(?:frac|sqrt|binom|infty|pi|(?:arc)?(?:sin|cos|tan)|cot|sec|csc|log"
    r"|ln|cdot|overline|[lr]floor|[lr]ceil|alpha|beta|delta|epsilon|theta|lambda|mu|phi|varphi|rho|sigma|tau|omega|hbar)"
    r"(?![A-Za-z]))+\Z"
)
_NOT_PLAIN = re.compile(
    r"(?<![A-Za-z\\])[A-Za-z]{4,}|[0-9]_|[0-9] [0-9]|\.[0-9]*\.|!!|[+\-/^_(.]\Z|\A[/^_)!]|\^\{[^{}]*\}\^"
)
# Beyond all answers: exponents and factorials of five digits, towers of powers, (x+1)^{400}.
_HUGE = re.compile(
    r"\^\{[^{}]*\d{5}|\d{5,}\)*!|!\)*!|\\binom\{\D*\d{5}|\^\{[^{}]*(?:[4-9]|\d\d)\^|\^\{[^{}]*\^\{(?:[4-9]|\d\d|[^{}]*\^)"
    r"|\^\{[^{}]*\d!|\)\^\{\d{3}"
)


def equal(first: str, second: str, decide: Decide) -> bool:
    """Whether two answers as written are equal, in either order."""
    a, b = sorted((spell(first), spell(second)))
    return _same(a, b, decide, MAX_DEPTH)


def last_side(text: str) -> str:
    """What an answer says that a quantity is: the text after `m+n =`; other spelled texts unchanged."""
    sides, signs = split(text, SIGN)
    if set(signs) != {"="} or len(split(text, _COMMA)[0]) > 1:
        return text
    return " = ".join([*(side for side in sides[:-1] if not _is_quantity(squeeze(side))), sides[-1]])


def _is_quantity(side: str) -> bool:
    """Whether it is a name, or has several unknowns: not a constant, and no equation of one unknown such as 2x."""
    text = re.sub(r"\\(?:frac|cdot|sqrt|binom|gcd|log|ln|sin|cos|tan)(?![A-Za-z])|\\[{}]", " ", side)
    if re.search(r"\\(?:Rightarrow|implies|to|approx)|(?:[-+]|\A)\d+(?:[-+]|\Z)", text):
        return False
    letters = re.findall("[a-z]", text)
    return bool(re.search(r"[A-Z\\#]", text)) or len(set(letters)) > 1 or bool(letters and _NAME.match(side))


def is_readable(text: str, depth: int = MAX_DEPTH) -> bool:
    """Whether other spellings of a spelled answer can be equal to it."""
    kind, parts = _structure(text)
    if kind:
        return depth > 0 and all(is_readable(part, depth - 1) for part in parts)
    value = squeeze(split_unit(text)[0])
    return bool(rational(value) is not None or _AS_WRITTEN.match(text) or _BASED.match(value) or is_plain(value))


def is_plain(text: str) -> bool:
    """Whether an expression can be parsed, and evaluated in a short time."""
    if not _PLAIN.match(text) or _NOT_PLAIN.search(text) or _HUGE.search(text):
        return False
    depths = [0]
    for token in text:
        depths.append(depths[-1] + (token in "({") - (token in ")}"))
    return depths[-1] == min(depths) == 0 and max(depths) <= MAX_DEPTH


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The pieces of a spelled text between separating tokens outside of all brackets, and those tokens."""
    pieces, tokens, depth, start = [], [], 0, 0
    for token in _TOKEN.finditer(text):
        if _OPEN.match(token[0]) or _CLOSE.match(token[0]):
            depth += 1 if _OPEN.match(token[0]) else -1
        elif depth == 0 and separator.match(token[0]):
            pieces.append(text[start : token.start()].strip())
            tokens.append(token[0])
            start = token.end()
    return [*pieces, text[start:].strip()], tokens


def _structure(text: str) -> tuple[str, Sequence[str]]:
    """("list", parts) of a list, a set or a union; "relation", "rows" or brackets and parts; ("", [value])."""
    if len(parts := [part for part in split(text, _COMMA)[0] if part]) > 1:
        return "list", parts
    if len(parts := split(text, re.compile(r"\\cup\Z"))[0]) > 1:
        return "list", parts
    if len(parts := split(text, SIGN)[0]) > 1:
        return "relation", parts
    if matrix := re.match(r"[(\[]?\\begin\{[pb]?matrix\}(.*)\\end\{[pb]?matrix\}[)\]]?\Z", text):
        return "rows", [row.replace("&", ",") for row in split(matrix[1], re.compile(r"\\cr\Z"))[0] if row]
    if brackets := re.match(r"(\\\{|[(\[])(.*?)(\\\}|[)\]])\Z", text):
        opening, inner, closing = brackets.groups()
        parts = split(inner, re.compile("[,;]"))[0]
        if opening == "\\{":
            return "list" if len(parts) > 1 else "", parts
        if len(parts) > 1 and inner.count("(") == inner.count(")"):
            return opening + closing, parts
    if "\\pm" in text:
        return "list", [text.replace("\\pm", sign) for sign in "+-"]
    return "", [text]


def _same(a: str, b: str, decide: Decide, depth: int) -> bool:
    if squeeze(a) == squeeze(b):
        return True
    if not depth:
        return False
    (kind_a, parts_a), (kind_b, parts_b) = _structure(a), _structure(b)
    if max(len(parts_a), len(parts_b)) > MAX_PARTS:
        return False
    if "relation" in (kind_a, kind_b):
        return _same_relation(split(a, SIGN), split(b, SIGN), decide, depth - 1)
    if "list" in (kind_a, kind_b) and kind_a != kind_b:
        (parts, kind, other) = (parts_a, kind_b, b) if kind_a == "list" else (parts_b, kind_a, a)
        if kind == "()" and all("=" in part for part in parts):  # x = 1, y = 2 is (1, 2)
            values = ",".join(part.partition("=")[2] for part in parts)
            return _same(f"({values})", other, decide, depth - 1)
        # x+1, 1+x is one value, and 1, 1 are two
        return len(set(parts)) == len(parts) and all(_same(part, other, decide, depth - 1) for part in parts)
    if kind_a == kind_b == "":
        return _same_value(parts_a[0], parts_b[0], decide)
    if kind_a != kind_b:
        return False
    if kind_a == "list":
        return _match(parts_a, parts_b, decide, depth - 1)
    return len(parts_a) == len(parts_b) and all(
        _same(x, y, decide, depth - 1) for x, y in zip(parts_a, parts_b, strict=True)
    )


def _match(first: Sequence[str], second: Sequence[str], decide: Decide, depth: int) -> bool:
    """Whether the parts pair off, in any order."""
    rest = list(second)
    for part in first:
        partner = next((other for other in rest if _same(part, other, decide, depth)), None)
        if partner is None:
            return False
        rest.remove(partner)
    return not rest


_Relation = tuple[list[str], list[str]]  # its sides, and the signs between them


def _same_relation(a: _Relation, b: _Relation, decide: Decide, depth: int) -> bool:
    (sides_a, signs_a), (sides_b, signs_b) = a, b = _ascending(*a), _ascending(*b)
    (name_a, values_a), (name_b, values_b) = _solved(*a), _solved(*b)
    is_solved = name_a == name_b != "" or not (signs_a and signs_b)
    if is_solved and all(_same(x, y, decide, depth) for x in values_a for y in values_b):
        return True
    if signs_a == signs_b == ["="]:
        first, second = (f"{squeeze(left)}-({squeeze(right)})" for left, right in (sides_a, sides_b))
        return is_plain(first) and is_plain(second) and decide(first, second, True)
    return signs_a == signs_b != [] and all(_same(x, y, decide, depth) for x, y in zip(sides_a, sides_b, strict=True))


def _ascending(sides: list[str], signs: list[str]) -> _Relation:
    """Without an empty left side, and with the smaller side first."""
    if signs and not sides[0]:
        sides, signs = sides[1:], signs[1:]
    if signs and signs[0] in (">", "\\ge"):
        return sides[::-1], [{">": "<", "\\ge": "\\le"}.get(sign, sign) for sign in signs[::-1]]
    return sides, signs


def _solved(sides: list[str], signs: list[str]) -> tuple[str, list[str]]:
    """The name in a relation, and the values or the interval that it says the name has; ("", its sides) without one."""
    names = [squeeze(side) if _NAME.match(squeeze(side)) else "" for side in sides]
    if signs and set(signs) <= {"=", "\\in"}:
        return (names[0], sides[1:]) if names[0] else (names[-1], sides[:-1] if names[-1] else sides)
    if len(signs) in (1, 2) and set(signs) <= {"<", "\\le"}:
        opening, closing = "(["[signs[0] == "\\le"], ")]"[signs[-1] == "\\le"]
        if len(signs) == 2 and names[1]:
            return names[1], [f"{opening}{sides[0]},{sides[2]}{closing}"]
        if len(signs) == 1 and names[0]:
            return names[0], [f"(-\\infty,{sides[1]}{closing}"]
        if len(signs) == 1 and names[1]:
            return names[1], [f"{opening}{sides[0]},\\infty)"]
    return "", sides


def _same_value(a: str, b: str, decide: Decide) -> bool:
    (a, unit_a), (b, unit_b) = split_unit(a), split_unit(b)
    if unit_a and unit_b and not _is_abbreviation(*sorted((unit_a, unit_b), key=len)):
        return False
    a, b = squeeze(a).removeprefix("+"), squeeze(b).removeprefix("+")
    if _LABEL.match(a) or _LABEL.match(b):
        return a == b
    if _WORDS.match(a) or _WORDS.match(b):
        first, second = (re.sub(r"\\text|[{}(). ]", "", text) for text in (a, b))
        return first == second or (len(first) > 1 and first.lower() == second.lower())
    if _BASED.match(a) or _BASED.match(b):
        return _based(a) == _based(b)
    numbers = rational(a), rational(b)
    if a == b or None not in numbers:
        return numbers[0] == numbers[1]
    if re.fullmatch("[A-Z]{2,}", a) or re.fullmatch("[A-Z]{2,}", b):  # ABC is a name, and CAB another one
        return False
    return is_plain(a) and is_plain(b) and decide(min(a, b), max(a, b), False)


def _based(number: str) -> tuple[str, str]:
    digits, base = match.groups() if (match := _BASED.match(number)) else (number, "")
    return digits.upper().lstrip("0"), str(_BASES.index(base) + 2) if base in _BASES else base


def _is_abbreviation(short: str, unit: str) -> bool:
    """Whether the letters of a unit are in another one: cm, centimeters."""
    letters = iter(unit)
    return (
        short[0] == unit[0] and short[-1].isdigit() == unit[-1].isdigit() and all(letter in letters for letter in short)
    )
