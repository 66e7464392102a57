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
_COMMA = re.compile(r"[,;]\Z|(?:and|or)\Z|\\(?:lor|cup|cr|text ?\{[ ,]*(?:and|or)[ ,]*\})\Z")
SIGN = re.compile(r"[=<>]|\\(?:le|ge|ne|in)\Z")
_TURNED = {">": "<", "\\ge": "\\le"}
# As it is written: a date is no difference, CAB is another name than ABC, and so are numbers of another base.
_LABEL = re.compile(r"\d+(?:-\d+)+\Z|[A-Z]{2,}\Z|-?[0-9A-F.]+_\{\d\d?\}\Z|\d+(?::\d+)+\Z")
_WORDS = re.compile(r"\\text ?\{[^{}]*\}\Z|\(?[A-Za-z]\)\Z|[A-Za-z][a-z ]{3,}\Z")
_NO_QUANTITY = re.compile(r"\\(?:Rightarrow|implies|to|approx)|(?:[-+]|\A) ?\d+ ?(?:[-+]|\Z)")
_AS_WRITTEN = re.compile(r"\\text ?\{.*\}\Z|-?\\infty\Z|\\\{ ?\\\}\Z")
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
_HUGE = re.compile(r"\^\{[^{}]*(?:\d{5}|\d!|\^\{(?![23]\}))|\d{5}\)*!|!\)*!|\\binom\{\D*\d{5}|\)\^\{\d{3}")


def equal(first: str, second: str, decide: Decide) -> bool:
    """Whether two answers as written are equal, in either order."""
    a, b = sorted((spell(first), spell(second)))
    return _same(a, b, decide, MAX_DEPTH)


def last_side(text: str) -> str:
    """What an answer says that a quantity is: the text after `m+n =`; other spelled texts unchanged.

    A quantity has several unknowns and no constant term. An equation of one unknown such as `2x = 6` is no answer.
    """
    sides, signs = split(text, SIGN)
    names = re.sub(r"\\(?:frac|cdot|sqrt|binom|log|ln|sin|cos|tan)(?![A-Za-z])", " ", sides[0])
    is_quantity = re.search(r"[A-Z\\#]|([a-z]).*(?!\1)[a-z]", names) and not _NO_QUANTITY.search(sides[0])
    return " = ".join(sides[1:]) if set(signs) == {"="} and is_quantity and len(split(text, _COMMA)[0]) < 2 else text


def is_readable(text: str, depth: int = MAX_DEPTH) -> bool:
    """Whether other spellings of a spelled answer can be equal to it."""
    kind, parts = _structure(text)
    if kind:
        return depth > 0 and all(is_readable(part, depth - 1) for part in parts)
    value = squeeze(split_unit(text)[0])
    return bool(rational(value) is not None or _AS_WRITTEN.match(text) or _LABEL.match(value) or is_plain(value))


def is_plain(text: str) -> bool:
    """Whether an expression can be parsed, and evaluated in a short time."""
    depths = [0]  # the parser's time is exponential in it
    for token in text:
        depths.append(depths[-1] + (token in "({") - (token in ")}"))
    is_sound = depths[-1] == min(depths) == 0 and max(depths) <= MAX_DEPTH and bool(_PLAIN.match(text))
    return is_sound and not (_NOT_PLAIN.search(text) or _HUGE.search(text))


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
    """("list", parts) of a list, a set or a union; "relation", "2 rows" or brackets, and parts; ("", [value])."""
    if len(parts := [part for part in split(text, _COMMA)[0] if part]) > 1:
        return "list", parts
    if len(parts := split(text, SIGN)[0]) > 1:
        return "relation", parts
    if matrix := re.match(r"[(\[]?\\begin\{[pb]?matrix\}(.*)\\end\{[pb]?matrix\}[)\]]?\Z", text):
        rows = [row for row in matrix[1].split("\\cr") if row.strip()]
        return f"{len(rows)} rows", [cell.strip() for row in rows for cell in row.split("&")]
    if brackets := re.match(r"(\\\{|[(\[])(.*?)(\\\}|[)\]])\Z", text):
        opening, inner, closing = brackets.groups()
        parts = split(inner, _COMMA)[0]
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
    (kind_a, parts_a), (kind_b, parts_b) = _structure(a), _structure(b)
    if not depth or max(len(parts_a), len(parts_b)) > MAX_PARTS:
        return False

    def same(x: str, y: str) -> bool:
        return _same(x, y, decide, depth - 1)

    if "relation" in (kind_a, kind_b):
        return _same_relation(a, b, decide, same)
    if kind_a == kind_b == "":
        return _same_value(parts_a[0], parts_b[0], decide)
    if kind_a == kind_b == "list":  # the parts pair off, in any order
        rest = list(parts_b)
        for part in parts_a:
            partner = next((other for other in rest if same(part, other)), None)
            if partner is None:
                return False
            rest.remove(partner)
        return not rest
    if "list" in (kind_a, kind_b):
        (parts, kind, other) = (parts_a, kind_b, b) if kind_a == "list" else (parts_b, kind_a, a)
        if kind == "()" and all("=" in part for part in parts):  # x = 1, y = 2 is (1, 2)
            return same(f"({','.join(part.partition('=')[2] for part in parts)})", other)
        # x+1, 1+x is one value, and 1, 1 are two
        return len(set(parts)) == len(parts) and all(same(part, other) for part in parts)
    return kind_a == kind_b and len(parts_a) == len(parts_b) and all(map(same, parts_a, parts_b))


def _same_relation(a: str, b: str, decide: Decide, same: Callable[[str, str], bool]) -> bool:
    (name_a, values_a, sides_a, signs_a), (name_b, values_b, sides_b, signs_b) = _solve(a), _solve(b)
    if (name_a == name_b != "" or not (signs_a and signs_b)) and all(same(x, y) for x in values_a for y in values_b):
        return True
    if signs_a == signs_b == ["="]:
        first, second = (f"{squeeze(left)}-({squeeze(right)})" for left, right in (sides_a, sides_b))
        return is_plain(first) and is_plain(second) and decide(first, second, True)
    return signs_a == signs_b != [] and all(map(same, sides_a, sides_b))


def _solve(text: str) -> tuple[str, list[str], list[str], list[str]]:
    """A name or "", the values or the interval that it has, and the sides and signs, from the smaller side on."""
    sides, signs = split(text, SIGN)
    if signs and not sides[0]:  # "= 204"
        sides, signs = sides[1:], signs[1:]
    if signs and signs[0] in _TURNED:
        sides, signs = sides[::-1], [_TURNED.get(sign, sign) for sign in signs[::-1]]
    if signs in (["<"], ["\\le"]):
        is_below = _NAME.match(squeeze(sides[0]))
        sides = ["-\\infty", *sides] if is_below else [*sides, "\\infty"]
        signs = ["<", *signs] if is_below else [*signs, "<"]
    names = [squeeze(side) if _NAME.match(squeeze(side)) else "" for side in sides]
    if signs and set(signs) <= {"=", "\\in"} and (names[0] or names[-1]):
        return names[0] or names[-1], sides[1:] if names[0] else sides[:-1], sides, signs
    if len(signs) == 2 and set(signs) <= {"<", "\\le"} and names[1]:
        opening, closing = "(["[signs[0] == "\\le"], ")]"[signs[1] == "\\le"]
        return names[1], [f"{opening}{sides[0]},{sides[2]}{closing}"], sides, signs
    return "", sides, sides, signs


def _same_value(a: str, b: str, decide: Decide) -> bool:
    (a, unit_a), (b, unit_b) = split_unit(a), split_unit(b)
    short, unit = sorted((unit_a, unit_b), key=len)
    if short and not re.fullmatch(".*".join(short) + "[a-z]*", unit):  # cm is centimeters
        return False
    a, b = squeeze(a).removeprefix("+"), squeeze(b).removeprefix("+")
    if _WORDS.match(a) or _WORDS.match(b):
        a, b = (re.sub(r"\\text|[{}(). ]", "", text) for text in (a, b))
        return a == b or (len(a) > 1 and a.lower() == b.lower())
    if a == b or any(map(_LABEL.match, (a, b))):
        return a == b
    numbers = rational(a), rational(b)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return is_plain(a) and is_plain(b) and decide(min(a, b), max(a, b), False)
