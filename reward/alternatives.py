r"""Whether the text after an announced answer offers another one: "204. If zero counts, 205."

A response is never right by naming several answers. Two sentences are the whole rule:
- A further number is offered as an answer if it stands where an answer would, at the start of a clause or after words
  that propose it ("or", "no", "it is", "we get"), and nothing follows it but the end of the clause or a condition.
- A number is harmless if it counts something ("17 primes"), belongs to a calculation or an equation, is denied ("not
  205", "205 fails"), continues a harmless list, or repeats the answer.

The search ends at a heading such as "Explanation:"; the steps below it have results of their own.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from reward.literals import rational
from reward.notation import spell, squeeze
from reward.units import split_unit

# No response explains a bare answer at greater length.
MAX_CHARS = 20_000

_HEADING = re.compile(
    r"^[ \t#*_>]*(?:explanation|verification|check|proof|justification|reasoning|solution|details|derivation|step|why|"
    r"how|let me (?:double[- ]?)?check|here(?:'s| is) (?:why|how))\b[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
_TOKEN = re.compile(
    r"(?P<formula>\$[^$]{1,300}\$)"
    r"|(?P<ordinal>[0-9]+(?:st|nd|rd|th)\b)"
    r"|(?P<number>(?<![\w.])[-\u2212]?[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?(?!\w))"
    r"|(?P<word>\\?[A-Za-z](?:[\w']|-(?=[A-Za-z]))*)"
    r"|(?P<line>\n[\s>]*(?:[-*+\u2022](?=\s)\s*)?)"
    r"|(?P<end>[.!?\u2026]+(?=[\s*)\"'}]|\Z)|;)"
    r"|(?P<mark>[,:()\[\]\u2013\u2014\u2192\u21d2]|--+|->|=>|(?<=\s)-(?=\s))"
    r"|(?P<operator>[^\s.!?*\"'])"
    r"|(?P<product>(?<=[0-9)\s])\*(?=[0-9(\s]))"
)
_TEXT = re.compile(r"\\(?:text|mbox|textrm|mathrm)\{([\s,.]*(?:or|and)[\s,.]*)\}")
_BLANK = re.compile(r"\\q?quad(?![A-Za-z])")
_CHOICE = re.compile(r"\\(?:text|mathrm)(?:bf|rm)?\{ ?\([A-E]\) ?\}\Z")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|leq|geq|neq|in|mid|equiv|approx|to|p?mod|bmod)(?![A-Za-z])")
_NAMED = re.compile(r"[A-Za-z|+()_{}\\ 0-9]{1,20}=([^=<>]+)\Z")
_CALCULATION = re.compile(r"[0-9)}] ?(?:\\cdot|\\times|[+*])(?![A-Za-z])")
_END_SIGNS = re.compile(r"\\(?:blacksquare|square|Box|qed|checkmark|therefore)(?![A-Za-z])")
# "One" is seldom a number in prose.
_CARDINAL = re.compile(
    r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million)"
    r"(?:-(?:one|two|three|four|five|six|seven|eight|nine))?\Z",
    re.IGNORECASE,
)


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_JOINING = _words("and or , &")
# These propose what follows them, whatever that is.
_PROPOSING = _words(
    "or maybe perhaps possibly probably alternatively otherwise else instead actually rather wait hmm sorry vs "
    "versus correction respectively \\lor \\vee"
)
_CONNECTING = _PROPOSING | _words(
    "no and but also so then therefore thus hence though although while whereas however yes still likely about it's "
    "that's equivalently approximately aka plus case"
)
_VERBS = _words(
    "is are be was were becomes become became equals equal get gets got gives give gave obtain obtains yields yield "
    "say says said meant mean means make makes have has prefer find finds"
)
_MODALS = _words("could might may would should can")
_SUBJECTS = _MODALS | _words(
    "it that this these they there we i you one some others many answer answers result count total value number sum "
    "guess alternative candidate possibility option choice solution other correct books sources reading "
    "interpretation convention and or if then"
)
_OTHERS = _words("other another second alternative alternate")
_ADVERBS = _words(
    "also just really actually now exactly simply probably likely maybe perhaps possibly instead only indeed rather "
    "truly"
)
_CONDITIONS = _words(
    "if when where for by otherwise else unless with without as counting including excluding depending assuming "
    "under instead too also perhaps maybe possibly or and but works once after since because though although while"
)
_APPROVED = _words(
    "possible acceptable accepted valid correct right plausible reasonable candidate answer option alternative "
    "choice possibility solution"
)
_ADMITTING = _words("consider accept allow")
_CANDIDATES = _words("candidates options possibilities alternatives answers values")
_ALTERNATIVE_SIGNS = ("/", "&", "|")
_CASES = _words("if when unless assuming otherwise in")
_MAX_LABEL = 30
_MAX_CLAUSE = 40
_MAX_NAME = 3
_MAX_ITEM = 100


class _Token(NamedTuple):
    kind: str  # "value", "equation" (also "3+4" and "two hundred"), "symbol", "word", "end", "mark" or "operator"
    text: str


def other_answer(answer: str, after: str) -> str | None:
    """The first other answer that is offered in the text after an announced one, None if there is none."""
    after = after[:MAX_CHARS]
    if heading := _HEADING.search(after):
        after = after[: heading.end()]
    if answer.replace("\\$", "").count("$") % 2:
        after = "$" + after
    tokens = _tokens(after)
    same, units = _said(answer), set(re.findall(r"[a-z]{2,}", answer))
    names = {"symbol"} if re.search("[0-9]", answer) else {"symbol", "word"}
    harmless: set[int] = set()
    for place, token in enumerate(tokens):
        if token.kind in names:
            if _is_other_symbol(tokens, place) and _value(token.text).lower() not in {said.lower() for said in same}:
                return token.text
        elif token.kind in ("value", "equation") and not _is_said(_value(token.text), same):
            is_proposed = not _is_label(tokens, place) and _is_proposed(tokens, place, harmless)
            if is_proposed and (token.kind == "equation" or _is_bare(tokens, place, units)):
                return token.text
            harmless.add(place)
    return None


def _tokens(text: str) -> list[_Token]:
    for delimiter in ("\\(", "\\)", "\\[", "\\]", "$$"):
        text = text.replace(delimiter, "$")
    text = _BLANK.sub(" , ", _TEXT.sub(r" \1 ", text.replace("**", "").replace("`", "")))
    tokens = []
    for found in _TOKEN.finditer(text):
        kind, content = str(found.lastgroup), found[0]
        if kind == "formula":
            tokens.append(_formula(content.strip("$").strip()))
        elif kind == "number":
            tokens.append(_Token("value", content))
        elif kind == "word" and _CARDINAL.match(content):
            tokens.append(_Token("equation", content))
        elif kind in ("word", "ordinal"):
            tokens.append(_Token("word", content.lower()))
        elif kind in ("line", "end"):
            tokens.append(_Token("end", "\n" if kind == "line" else content))
        else:
            tokens.append(_Token("mark" if kind == "mark" else "operator", content))
    return tokens


def _formula(content: str) -> _Token:
    """A formula is a value, an equation that gives a name a value, or as good as a word."""
    if _END_SIGNS.search(content):
        return _Token("end", ".")
    if _CHOICE.match(content):
        return _Token("word", "choice")
    if _RELATION.search(content):
        named = _NAMED.match(content)
        return _Token("equation", named[1].strip()) if named else _Token("word", "formula")
    if _CALCULATION.search(content):
        return _Token("equation", content)
    return _Token("value" if re.search(r"[0-9]|\\frac|\\sqrt", content) else "symbol", content)


def _said(answer: str) -> set[str]:
    answer = answer.replace("**", "").replace("`", "")
    sides = [answer, answer.rpartition("=")[2]]
    return {_value(side) for side in sides}


def _is_said(value: str, same: set[str]) -> bool:
    """Whether a value is one of the announced answer, in whatever spelling."""
    number = rational(value)
    return value in same or (number is not None and any(rational(said) == number for said in same))


def _value(text: str) -> str:
    spelled = spell(text.replace("\\(", "").replace("\\)", ""))
    return squeeze(split_unit(spelled)[0])


def _is_other_symbol(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a formula without numbers, or a word, is all that a clause proposes: "or $y$", "or odd"."""
    before, after = tokens[:place][-1:], tokens[place + 1 : place + 2]
    if after and after[0].kind not in ("end", "mark"):
        return False
    is_alone = tokens[place].kind == "symbol" and (not before or before[0].kind == "end")
    return is_alone or _is_after_a_proposing_word(tokens, place)


def _is_label(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a number only counts the items of a list: "1. First we place the rooks"."""
    text = tokens[place].text
    if not text.isdecimal() or int(text) > _MAX_LABEL:
        return False
    if place and tokens[place - 1].text != "\n":  # "1. We count. 2. We add."
        pairs = pairwise(token.text for token in tokens[max(0, place - _MAX_ITEM) : place])
        if tokens[place - 1].kind != "end" or (str(int(text) - 1), ".") not in pairs:
            return False
    following = tokens[place + 1 : place + 3]
    return len(following) == 2 and following[0].text in (".", ")", ":") and following[1].text != "\n"


def _is_proposed(tokens: Sequence[_Token], place: int, harmless: set[int]) -> bool:
    """Whether a value stands at the start of a clause, or after words that propose it."""
    if tokens[place].kind == "equation":
        return _is_after_a_proposing_word(tokens, place) or _is_admitted(tokens, place)
    if place == 0:
        return True
    before = tokens[place - 1]
    if before.text in _JOINING and _continues_a_harmless_list(tokens, place, harmless):
        return False
    if before.kind in ("end", "mark"):
        return not _opens_a_tuple(tokens, place)
    if before.kind == "operator":  # nothing is calculated at the start of a clause
        if before.text == "=" and place > 2 and len(tokens[place - 2].text) <= _MAX_NAME:
            return _is_after_a_proposing_word(tokens, place - 2)
        if place == 1 or tokens[place - 2].text in ("\\lor", "\\vee"):
            return before.text in _ALTERNATIVE_SIGNS
        return place > 1 and tokens[place - 2].kind in ("end", "mark") and tokens[place - 2].text not in (")", "]")
    if before.text in _CONNECTING:
        return True
    last = [token.text for token in tokens[max(0, place - 3) : place]]
    if last == ["as", "well", "as"] or (last[-2:-1] == ["also"] and before.text in _ADMITTING):
        return True
    if before.text not in _VERBS and before.text not in _ADVERBS:
        return before.text in ("that", "it") and place > 1 and tokens[place - 2].text in _VERBS  # "or is it 205?"
    words = [token.text.partition("'")[0] for token in tokens[max(0, place - 10) : place] if token.kind == "word"]
    while words and (words[-1] in _ADVERBS or words[-1] in _VERBS):
        words.pop()
    return bool(words) and (words[-1] in _SUBJECTS or _is_about_the_answer(words))


def _is_admitted(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a value is said to be right as well: "$x = 205$ works too"."""
    following = [token.text for token in tokens[place + 1 : place + 5]]
    return following[:1] in (["works"], ["is"], ["holds"]) and not {"too", "also", "possible", "valid"}.isdisjoint(
        following
    )


def _is_about_the_answer(subject: Sequence[str]) -> bool:
    """Whether a subject is another answer ("the other root") or the answer of one case ("the value for even n")."""
    if not _OTHERS.isdisjoint(subject[-4:]):
        return True
    cases = ("for", "when", "if", "with", "without")
    return any(noun in _SUBJECTS and word in cases for noun, word in pairwise(subject))


def _is_after_a_proposing_word(tokens: Sequence[_Token], place: int) -> bool:
    before = [token.text for token in tokens[max(0, place - 2) : place]]
    while before and before[-1] in (",", ":"):
        before.pop()
    return bool(before) and (before[-1] in _PROPOSING or before[-1] == "no")


def _continues_a_harmless_list(tokens: Sequence[_Token], place: int, harmless: set[int]) -> bool:
    """Whether a value goes on with a list such as "the primes 2, 3 and 5". "If n > 2, 205" is no list."""
    following = tokens[place + 1].text if place + 1 < len(tokens) else ""
    if following in ("if", "when", "where", "for", "otherwise", "else", "unless"):
        return False
    at = place - 1
    while at >= 0 and tokens[at].text in _JOINING:
        at -= 1
    if at not in harmless:
        return False
    clause = tokens[max(0, at - _MAX_CLAUSE) : at]
    begin = max((n + 1 for n, token in enumerate(clause) if token.kind == "end" or token.text in ("(", ":")), default=0)
    is_condition = bool(clause[begin:]) and clause[begin].text in _CASES
    return not (is_condition and tokens[place - 1].text == ",")


def _opens_a_tuple(tokens: Sequence[_Token], place: int) -> bool:
    """Whether the bracket before a value is that of coordinates or of a function: `f(3)`, `= (3, 5)`, "is (1, 2)"."""
    if tokens[place - 1].text != "(" or place < 2:
        return False
    before, after = tokens[place - 2], tokens[place + 1 : place + 2]
    if before.kind == "operator":
        return True
    has_comma = bool(after) and after[0].text == ","
    return has_comma and before.kind in ("word", "mark") and before.text not in _PROPOSING


def _is_bare(tokens: Sequence[_Token], place: int, units: set[str]) -> bool:
    """Whether nothing follows a value but the end of its clause, a condition, or approval."""
    if place + 1 == len(tokens):
        return True
    after = tokens[place + 1]
    if after.text in ("-", "\u2013") and "=" in [token.text for token in tokens[place + 3 : place + 4]]:
        return False  # 205 - 1 = 204
    if after.kind in ("end", "mark"):
        return after.text != ":"
    if after.kind == "value" and place > 1 and tokens[place - 1].text == ":":
        return tokens[place - 2].text in _CANDIDATES
    if after.kind == "operator":
        return False
    if after.text in _CONDITIONS or after.text in units:
        return True
    following = [token.text for token in tokens[place + 1 : place + 7]]
    is_approved = any(word in _APPROVED for word in following) and "not" not in following
    if after.text in _MODALS or after.text in ("is", "seems"):
        return is_approved
    if after.text == "in":
        return any(word in ("case", "which", "that") for word in following[1:3])
    return place > 0 and tokens[place - 1].text in _PROPOSING and after.kind == "word"
