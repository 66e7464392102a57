r"""Where a message says its answer: in its last `\boxed{...}`, or after the last phrase such as "the answer is".

String work in linear time. A message that names several answers gives all of them, so that none is credited alone.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from reward.notation import MAX_ANSWER_CHARS

NO_ANSWER = "no \\boxed and no answer phrase"
CUT_IN_BOX = "cut inside \\boxed"

# A box may have digits without braces.
_NUMBER = r"[+-]?[0-9]+(?:[.,][0-9]+)*"
# Escaped braces and line breaks are skipped as pairs, but "\\boxed" (a doubled backslash) still opens a box.
_BRACE = re.compile(
    rf"(?P<box>\\f?box(?:ed)?(?![A-Za-z])\s*(?:\{{|\Z|(?P<bare>{_NUMBER})))|\\(?:[{{}}]|\\(?!f?box))|[{{}}]"
)

# What parts the boxes of one list: signs, words that join, a name. Other words say that the next box is another matter.
_JOINING = r"(?:and|or|also|maybe|perhaps|possibly|alternatively|otherwise|else|either|both)(?![A-Za-z])"
_BOX_SEPARATOR = re.compile(
    rf"(?:[\s$.,;:!?/*()\[\]|-]|\\[,;:! ()\[\]]|\\q?quad(?![A-Za-z])|(?<![A-Za-z]){_JOINING}"
    rf"|\\(?:text|mbox|textrm|mathrm)\{{[\s,.]*(?:{_JOINING}[\s,.]*)*\}}|(?<![A-Za-z])[A-Za-z](?:_[A-Za-z0-9])?\s*=)*\Z",
    re.IGNORECASE,
)
MAX_BOXES = 64
MAX_SEPARATOR_CHARS = 80

# Every quantifier is bounded, so that a search through megabytes stays linear.
_PHRASE = re.compile(
    r"\b(?:final |correct )?answers?(?: to (?:the|this) (?:problem|question))?"
    r"(?:\*{0,2}(?: is| are| was| equals| comes out to| must be| should be| =)"
    r"(?:,? (?:therefore|thus|hence|then|indeed|simply|just|clearly|also|exactly)\b,?)?(?![A-Za-z])[\s:]{0,8}"
    r"|\*{0,2}\s?:|\*{0,2}\n)[\s*:]{0,16}"
    r"|(?:\n|\A)####[ ]{0,8}",
    re.IGNORECASE,
)
# Where what follows a phrase ends: a line, a full stop that is no decimal point, a reason, or a model's end token. The
# semicolon of a formula, of `\;` and of a tuple ends nothing.
_PHRASE_END = re.compile(
    r"\n|\.(?=\s|\*|\Z)|<\||</s>|(?P<condition>,? \(?(?:where|when|if|by|after|for)\b)"
    r"|,? \(?(?:because|since|as(?! well\b)|so(?! (?:is|are|does)\b)|which)\b|[!?](?=\s|\Z)|(?P<semicolon>(?<!\\);)"
)
# What follows that end may name another answer: then the response names several, and none of them counts.
_VALUE = r"[\s*$(]*(?:\\[(\[])?[\s{]*-?[0-9\\]"
_NUMBER_ALONE = r"-?[0-9][0-9,]*[\s*)]*[.;!?]*[ *)]*(?:\n|\Z)"  # "1. First" is an item of a list
_FORMULA_ALONE = (
    r"(?:\$|\\\()(?! ?\\(?:blacksquare|square|Box|qed|checkmark)(?![A-Za-z]))"
    r"[^$\n=<>]{1,120}?(?:\$|\\\))[\s*)]*(?:[.;!?\n]|\Z)"
)
_ALTERNATIVE = re.compile(
    r"(?:\\[)\]]|[\s.;,!?*$)]){0,20}(?:\(?(?:or|alternatively|otherwise|else|maybe|perhaps|possibly)\b"
    rf"|\(?(?:and|but|also)(?: also| maybe| perhaps)?{_VALUE}|{_NUMBER_ALONE})"
    rf"|(?:\\[)\]]|[\s.;,!?*)]){{0,20}}\$?(?:\\\))?[\s.;,!?*)]{{0,20}}{_FORMULA_ALONE}",
    re.IGNORECASE,
)
# A second condition belongs to a second answer: "1 for odd n or 2 for even n".
_SECOND_CASE = re.compile(
    r"(?:\b(?:or|and|but)\b|[,;])[^.\n0-9$\\]{0,40}[0-9$\\][^.\n]{0,80}?\b(?:where|when|if|by|after|for|otherwise|else)\b"
)
# What is said about an answer is none: one that judges it, or several words and nothing else.
_PROSE = re.compile(
    r"(?:(?:indeed|also|in fact|now|not|definitely|therefore) )?"
    r"(?:correct|incorrect|right|wrong|verified|confirmed|valid|invalid|unique|consistent|plausible|reasonable|sound|"
    r"final)\b[^0-9\\$=]*\Z|[a-z']+(?:,? [a-z']+){3,}\Z"
)
# How many phrases are looked at for one that is followed by an answer.
MAX_PHRASES = 20
_DISPLAYED = re.compile(r"\\\[|\$\$")
_DISPLAYED_TOO = re.compile(r"[\s.,;]*(?:or|and|alternatively|maybe|perhaps)\b[\s,]*(?:\\\[|\$|\\\()", re.IGNORECASE)


class _Box(NamedTuple):
    """A box in a text: where it begins, what it holds (`start` to `stop`), and where it ends."""

    begin: int
    start: int
    stop: int
    end: int


def last_box(text: str) -> tuple[str | None, str | None]:
    r"""The content of the `\boxed{...}` that closes last, or (None, why not).

    A box opened after that one and never closed means that the text was cut in its answer. Boxes that only "and", "or"
    or a comma parts are one answer, a list: a response is not right by naming several.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None, NO_ANSWER
    open_braces: list[tuple[int, int | None]] = []  # where the content starts, and where the box does, if it is one
    boxes: list[_Box] = []
    for match in _BRACE.finditer(text):
        if match["bare"]:
            boxes.append(_Box(match.start(), *match.span("bare"), match.end()))
        elif match["box"]:
            open_braces.append((match.end(), match.start()))
        elif match[0] == "{":
            open_braces.append((match.end(), None))
        elif match[0] == "}" and open_braces:
            start, box = open_braces.pop()
            if box is not None:
                boxes.append(_Box(box, start, match.start(), match.end()))
    last_end = boxes[-1].stop if boxes else -1
    if any(box is not None and start > last_end for start, box in open_braces):
        return None, CUT_IN_BOX
    if not boxes:
        return None, NO_ANSWER
    return _joined(text, boxes), None


def _joined(text: str, boxes: Sequence[_Box]) -> str:
    """The content of the last box, and of those that are listed before it."""
    last = boxes[-1]
    contents, begin = [text[last.start : last.stop]], last.begin
    for box in reversed(boxes[:-1]):
        if box.end > begin:
            continue  # inside one of these
        if len(contents) == MAX_BOXES or begin - box.end > MAX_SEPARATOR_CHARS:
            break
        if not _BOX_SEPARATOR.match(text, box.end, begin):
            break
        contents.append(text[box.start : box.stop])
        begin = box.begin
    contents.reverse()
    return ", ".join(contents) if any(content != contents[0] for content in contents) else contents[0]


def after_phrase(text: str) -> str | None:
    """What follows the last phrase that announces an answer; None where there is none, or nothing follows.

    What follows may be said about the answer ("is correct"): then an earlier phrase counts.
    """
    found = None
    for phrase in islice(reversed(list(_PHRASE.finditer(text))), MAX_PHRASES):
        content = _announced(text, phrase.end())
        if content and not _PROSE.match(content):
            return content
        found = found or content
    return found


def _announced(text: str, start: int) -> str | None:
    # One character more than an answer may have says that it is too long.
    rest = text[start : start + MAX_ANSWER_CHARS + 1]
    displayed = _DISPLAYED.match(rest)
    if displayed:
        end = rest.find("\\]" if displayed[0] == "\\[" else "$$", displayed.end())
        after = rest[end + 2 :] if end >= 0 else ""
        shown = rest[displayed.end() : end] if end >= 0 else rest[displayed.end() :]
        rest = shown + after if _DISPLAYED_TOO.match(after) else shown
    else:
        rest = _up_to_end(rest)
    for delimiter in ("**", "`", "\\(", "\\)"):
        rest = rest.replace(delimiter, "")
    return rest.strip() or None


def _up_to_end(rest: str) -> str:
    """The announced answer, or more than it where another answer follows: what names several equals none."""
    for end in _PHRASE_END.finditer(rest):
        if end["semicolon"] and _is_inside(rest[: end.start()]):
            continue
        other = _ALTERNATIVE.match(rest, end.start())
        names_several = (other and not _says_again(rest, end.start())) or (
            end["condition"] and _SECOND_CASE.search(rest, end.end())
        )
        return rest if names_several else rest[: end.start()]
    return rest


def _says_again(rest: str, end: int) -> bool:
    """Whether all that follows an answer, to the end of the text, is that answer once more."""
    said = _bare(rest[:end])
    again = [_bare(part) for part in re.split(r"\n|[.;!?](?=\s|\Z)", rest[end:])]
    return bool(said) and all(part == said for part in again if part)


def _bare(text: str) -> str:
    return re.sub(r"[\s$*`.;!?]|\\[()\[\]]|\\therefore(?![A-Za-z])", "", text)


def _is_inside(before: str) -> bool:
    """Whether a formula or a bracket is open at the end of a text."""
    dollars = before.count("$") - before.count("\\$")
    return dollars % 2 == 1 or before.count("(") > before.count(")") or before.count("[") > before.count("]")
