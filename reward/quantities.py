r"""Equations that say a value: `m+n = 204` is 204, while `2x = 204` still has to be solved.

The left side has to be a name or a constant. A name is what a question may ask for:
- a variable, or a function applied to something;
- a length, a measure such as `|S|`, the cosine of an angle (`\cos A`, not `\cos x`);
- words;
- sums, products or quotients of several of these.

A constant is a statement about numbers, which has to be true: `100+105 = 204` states nothing.
"""

import re
from typing import NamedTuple

from reward.expression import GREEK, is_plain
from reward.literals import rational, replace_divisors
from reward.notation import squeeze
from reward.splitting import Unreadable, split_list, split_relation
from reward.units import split_unit

# Parts of an equation that say more than the name of a quantity.
_STATEMENT = re.compile(
    r"\\(?:[A-Za-z]*arrow|implies|iff|to|therefore|because|approx|equiv|ne|mid|ni|in)(?![A-Za-z])|[?:]|->|=>"
    r"|\\text ?\{[^{}]*(?:[=0-9]|\b(?:or|and)\b)"
)
_SUBSCRIPT = re.compile(r"_\{[^{}]*\}")  # the place of a limit, the range of a sum
_SIGNS_OF_A_PRODUCT = re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[\s*(){}]")
_NUMBER_OF_A_NAME = re.compile(r"-?[0-9]{2}[0-9.,]*(?:[A-Za-z]|\\(?!frac|sqrt|pi))[^+-]*\Z")

# Sums, limits and remainders are names as they are written; nothing here computes them.
_LED = re.compile(
    r"\\(?:sum|prod|int|lim|max|min|sup|inf|det|dim|deg|gcd|operatorname\{lcm\}|Pr)(?![a-z])|[^=]*\\[bp]?mod(?![a-z])"
)
_WORDS = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z]+)*\Z")
_NESTED = r"(?:[^(){}]|\{[^{}]*\}|\((?:[^()]|\([^()]*\))*\))*"
_INDEX = r"(?:_(?:[A-Za-z0-9]|\\[A-Za-z]+|\{[^{}]*\}))?'*"
_LETTER = rf"(?:[A-Za-z]|\\(?:ell|{GREEK})(?![A-Za-z])|\\math(?:cal|bb)\{{[A-Z]\}})"
_ANGLE = rf"[0-9]*(?: ?\\angle ?)?(?:\\(?:{GREEK})(?![A-Za-z])|[A-Z]{{1,3}}(?![A-Za-z]))"
_ATOM = re.compile(
    rf"(?P<measure>\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{{[0-9]+\}})? ?(?:{_ANGLE}|\({_ANGLE}(?:[+-]{_ANGLE})*\))"
    r"|\\# ?(?:[A-Z]|\\\{[^{}]*\})|\\binom\{[^{}]*[a-z][^{}]*\}\{[^{}]*\}|(?:[A-Z]|\\mathbb\{[A-Z]\})\[[^\[\]]*\]"
    r"|\|[^|]*[A-Za-z][^|]*\||\[[A-Z]{3,}\]|\\lfloor[^=]*[A-Za-z][^=]*?\\rfloor|\\lceil[^=]*?\\rceil"
    r"|\\(?:overline|vec|hat|bar|widehat|overrightarrow)\{[A-Za-z]+\}|m?\\(?:angle|triangle)(?: ?\{?[A-Z]{1,4}'*\}?)?"
    rf"|(?:\\(?:text|operatorname) ?\{{[^{{}}]*[A-Za-z][^{{}}]*\}}|\\varphi|\\phi)(?:\({_NESTED}\))?|[A-Z]{{2,4}}'*)"
    rf"|(?P<applied>(?P<function>{_LETTER}){_INDEX}(?:\^\{{[^{{}}]*\}})?'*\((?P<argument>{_NESTED})\))"
    rf"|(?P<variable>{_LETTER}{_INDEX})"
)
_COEFFICIENT = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:\\cdot ?)?")
_POWER = re.compile(r"\^\{[0-9]+\}")
_FRACTION = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}\Z")
_COMMAND_OF_A_CONSTANT = re.compile(
    r"\\(?:frac|sqrt|binom|pi|arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg|exp|cdot|[lr](?:floor|ceil))"
    r"(?![A-Za-z])"
)


class _Term(NamedTuple):
    has_coefficient: bool
    atoms: frozenset[str]
    is_measure: bool  # one length or size, of which also a power may be asked for
    is_power: bool


def split_equation(text: str) -> list[str] | None:
    r"""The sides of the equation `m+n = ... = A` in a spelled text which have to be the number that it says.

    These are its constants and its last side; every side but the names if the last one is a formula. None says that
    the text is not an equation. The list is empty if the equation states no number: `2x = 204`,
    `205 \Rightarrow x = 204`, and `x^2-4y = 0`, which is a curve.
    """
    try:
        sides, operators = split_relation(text.replace("&", ""))
        if not operators or any(operator != "=" for operator in operators):
            return None
        *before, last = [side.strip() for side in sides]
        if any(_STATEMENT.search(_SUBSCRIPT.sub("", side)) or len(split_list(side)) > 1 for side in before):
            return []
    except Unreadable:
        return []
    constants = [side for side in before if _is_constant(side)]
    others = [side for side in before if side not in constants]
    if not others and is_name(last):  # 204 = m+n
        return constants
    if before[0] in others and not is_name(before[0]):
        return []
    if any(_NUMBER_OF_A_NAME.match(_SIGNS_OF_A_PRODUCT.sub("", side)) for side in others):
        return []
    is_zero = rational(squeeze(split_unit(last)[0])) == 0
    if is_zero and any(re.search("[+-]", side) and re.search("[0-9]", side) for side in others):
        return []
    if not _is_constant(last):  # a formula, which other formulas before it have to equal
        constants = [side for side in before if not is_name(side)]
    return [*constants, last]


def _is_constant(side: str) -> bool:
    value = replace_divisors(squeeze(split_unit(side)[0]))
    return is_plain(value) and not re.search(r"[A-Za-z\\]", _COMMAND_OF_A_CONSTANT.sub("", value))


def is_name(text: str) -> bool:
    """Whether a spelled text names a quantity that a question may ask for."""
    if _WORDS.match(text) and len(set(text)) > 1:
        return True
    text = squeeze(text)
    if text.startswith("(") and text.endswith(")") and ")" not in text[:-1]:
        text = text[1:-1]
    if _LED.match(text):
        return True
    if fraction := _FRACTION.match(text):
        return is_name(fraction[1]) and is_name(fraction[2])
    quotient = _pieces(text, "/")
    if len(quotient) > 1:
        return all(is_name(part) for part in quotient)
    terms = [_term(piece) for piece in _pieces(text, "+-")]
    atoms: set[str] = set()
    for term in terms:
        if term is None:
            return False
        atoms |= term.atoms
    if len(atoms) > 1:
        return len(terms) > 1 or not (terms[0] and (terms[0].has_coefficient or terms[0].is_power))
    term = terms[0]
    return len(terms) == 1 and term is not None and not term.has_coefficient and (term.is_measure or not term.is_power)


def _pieces(text: str, signs: str) -> list[str]:
    """The parts of a text between signs outside of all brackets and bars."""
    pieces, depth, start, is_in_bars = [], 0, 0, False
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        is_in_bars ^= character == "|"
        if character in signs and not depth and not is_in_bars:
            pieces.append(text[start:at])
            start = at + 1
    return [*pieces, text[start:]]


def _term(text: str) -> _Term | None:
    """A product of atoms with an optional coefficient, None for anything else."""
    coefficient = _COEFFICIENT.match(text)
    at = coefficient.end() if coefficient else 0
    atoms: list[str] = []
    is_measure = is_power = False
    while at < len(text):
        match = _ATOM.match(text, at)
        if not match:
            return None
        if match["applied"] and re.search(rf"(?<![A-Za-z\\]){re.escape(match['function'])}(?!\()", match["argument"]):
            return None  # x(x+1) is a product
        atoms.append(match[0])
        is_measure = bool(match["measure"])
        at = match.end()
        if power := _POWER.match(text, at):
            is_power, at = True, power.end()
        at = re.compile(r"(?:\\cdot)? ?").match(text, at).end()  # type: ignore[union-attr]
    is_power = is_power or len(set(atoms)) < len(atoms)
    return _Term(bool(coefficient), frozenset(atoms), is_measure, is_power) if atoms else None
