r"""The text around an answer, as tokens: words, values, equations, signs, and the ends of sentences.

A formula is one token of one of these kinds:
- a value (`$205$`, `$120+84$`);
- an equation that gives a name a value (`$x = 205$`);
- a statement (`$2+3 = 5$`);
- a symbol (`$y$`), or as good as a word.
"""

import re
from itertools import accumulate
from typing import NamedTuple

from reward.expression import is_plain
from reward.notation import spell, squeeze
from reward.units import split_unit

_NUMBER = r"[-\u2212]?[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?"
_LETTER_NAME = "[A-Za-z](?:_[A-Za-z0-9])?"
_TOKEN = re.compile(
    rf"(?P<equation>(?:(?<![\w\\$]){_LETTER_NAME}|\${_LETTER_NAME}\$)\s*=\s*{_NUMBER}(?![\w(]|\s*[-\u2212+*/^=\\]))"
    r"|(?P<formula>\$[^$]{1,300}\$)"
    r"|(?P<ordinal>[0-9]+(?:st|nd|rd|th)\b)"
    rf"|(?P<number>(?<![\w.]){_NUMBER}(?!\w))"
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
_NAME = re.compile(r"[A-Za-z|+(),_{}\\ 0-9]{1,40}\Z")
_LETTER = re.compile(r"[A-Za-z]")
_CALCULATION = re.compile(r"[0-9)}] ?(?:\\cdot|\\times|[+*])(?![A-Za-z])")
_SEQUENCE = re.compile(r"\\[lc]?dots(?![A-Za-z])|\.\.\.|\u2026")
_LISTING = re.compile(r"(?:\\[{}]|[()\[\],; ])+")
_END_SIGNS = re.compile(r"\\(?:blacksquare|square|Box|qed|checkmark|therefore)(?![A-Za-z])")
# "One" is seldom a number in prose.
_CARDINAL = re.compile(
    r"(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million)"
    r"(?:-(?:one|two|three|four|five|six|seven|eight|nine))?\Z",
    re.IGNORECASE,
)


# Words that are read of one sentence.
MAX_CLAUSE = 40


class Token(NamedTuple):
    """A piece of text.

    kind: "value", "equation" (gives a name a value), "statement" (also a number in words), "symbol", "word", "end",
    "mark" or "operator".
    """

    kind: str
    text: str


class Prose:
    """The tokens of a text. `at` is the position of the token that a method asks about."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens(text)
        begins = (at if at and self.tokens[at - 1].kind == "end" else 0 for at in range(len(self.tokens)))
        self.begins = list(accumulate(begins, max))  # where the sentence of each token begins

    def words_before(self, at: int, count: int) -> list[str]:
        return [token.text for token in self.tokens[max(0, at - count) : at]]

    def words_after(self, at: int, count: int) -> list[str]:
        return [token.text for token in self.tokens[at + 1 : at + 1 + count]]

    def next_word(self, at: int) -> str:
        return self.tokens[at + 1].text if at + 1 < len(self.tokens) else ""

    def sentence(self, at: int) -> list[str]:
        """The last words before a token, as far as they are of its sentence."""
        return self.words_before(at, min(at - self.begins[at], MAX_CLAUSE))

    def clause(self, at: int) -> list[str]:
        """The last words before a token, as far as they are of its clause."""
        sentence = self.sentence(at)
        begins = (number + 1 for number, word in enumerate(sentence) if word in (",", "(", "but", "though", "although"))
        return sentence[max(begins, default=0) :]


def tokens(text: str) -> list[Token]:
    """The tokens of a text. Words are in lower case."""
    for delimiter in ("\\(", "\\)", "\\[", "\\]", "$$"):
        text = text.replace(delimiter, "$")
    text = _BLANK.sub(" , ", _TEXT.sub(r" \1 ", text.replace("**", "").replace("`", "")))
    pieces = []
    for match in _TOKEN.finditer(text):
        kind, content = str(match.lastgroup), match[0]
        if kind == "formula":
            pieces.append(_formula(content.strip("$").strip()))
        elif kind == "number":
            pieces.append(Token("value", content))
        elif kind == "word" and _CARDINAL.match(content):
            pieces.append(Token("statement", content))
        elif kind in ("word", "ordinal"):
            pieces.append(Token("word", content.lower()))
        elif kind in ("line", "end"):
            pieces.append(Token("end", "\n" if kind == "line" else content))
        else:
            pieces.append(Token(kind if kind in ("mark", "equation") else "operator", content))
    return pieces


def _formula(content: str) -> Token:
    if _END_SIGNS.search(content):
        return Token("end", ".")
    if _CHOICE.match(content):
        return Token("word", "choice")
    if _SEQUENCE.search(content):
        return Token("word", "sequence")
    if _RELATION.search(content):
        return _equation(content)
    is_value = re.search(r"[0-9]|\\frac|\\sqrt", content)
    return Token("value" if is_value else "symbol", content)


def _equation(content: str) -> Token:
    name, *sides = content.split("=")
    if not name and len(sides) == 1 and is_read(sides[0]) and re.search("[0-9]", sides[0]):  # `\\boxed{204} = 205`
        return Token("value", sides[0])
    if not sides or _RELATION.search(content.replace("=", "")) or not _NAME.match(name) or not is_read(sides[-1]):
        return Token("word", "formula")
    is_name = _LETTER.search(name) and not _CALCULATION.search(name)
    return Token("equation" if is_name else "statement", content)


def value_of(text: str) -> str:
    """The value that a text or the last side of an equation says, in one spelling."""
    side = text.rpartition("=")[2].replace("\\(", "").replace("\\)", "")
    return squeeze(split_unit(spell(side))[0])


def is_read(text: str) -> bool:
    """Whether a text holds plain expressions, maybe in a list, a tuple or an interval."""
    parts = _LISTING.split(value_of(text))
    return any(parts) and all(is_plain(part) for part in parts if part)
