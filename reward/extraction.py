r"""Finds the answer in a message: in its last `\boxed{...}`, or after the last phrase such as "the answer is".

String work in linear time. A response is not right by naming several answers. Boxes of one sentence are one list,
unless words such as "so" and "gives" conclude the last one from the others. A list also holds what stands before the
box ("205 or") or after it (`alternatives`). A phrase before the box may contradict it (`phrases`).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from reward.alternatives import MAX_CHARS, other_answers
from reward.phrases import CONCLUDING, after_phrase, earlier_answer

NO_ANSWER = "no \\boxed and no answer phrase"
CUT_IN_BOX = "cut inside \\boxed"

# A box may have digits without braces.
_NUMBER = r"[+-]?[0-9]+(?:[.,][0-9]+)*"
# Escaped braces and line breaks are skipped as pairs, but "\\boxed" (a doubled backslash) still opens a box.
_BRACE = re.compile(
    rf"(?P<box>\\f?box(?:ed)?(?![A-Za-z])\s*(?:\{{|\Z|(?P<bare>{_NUMBER})))|\\(?:[{{}}]|\\(?!f?box))|[{{}}]"
)

# Signs, joining words, labels and names separate the boxes of one list.
_JOINING = r"(?:and|or|also|maybe|perhaps|possibly|alternatively|otherwise|else|either|both)(?![A-Za-z])"
_BOX_SEPARATOR = re.compile(
    rf"(?:[\s$.,;:!?/*()\[\]~&|{{}}-]|\\[,;:! ()\[\]\\]|\\(?:q?quad|lor|vee)(?![A-Za-z])|(?<![A-Za-z]){_JOINING}"
    rf"|\\(?:text|mbox|textrm|mathrm)\{{[\s,.]*(?:{_JOINING}[\s,.]*)*\}}|(?<![A-Za-z])[A-Za-z](?:_[A-Za-z0-9])?\s*="
    r"|(?<![\w.])(?:[0-9]{1,2}|[a-z])[.)])*\Z",
    re.IGNORECASE,
)
# Words in one sentence do so, too, unless the second box follows from the first. A new sentence is a new statement
# unless it offers an alternative.
_NEW_SENTENCE = re.compile(r"[.!?](?=[\s*$)]|\\\])|\n")
_ALTERNATIVE = re.compile(r"\b(?:or|maybe|perhaps|possibly|alternatively|otherwise|else)\b", re.IGNORECASE)
_CLOSING = re.compile(
    r"(?:[\s}.]|\\[,;:! ]|\^\\circ|\\end\{[a-z*]+\}"
    r"|\\(?:text|mathrm|mbox)\{[a-z ./]*\}(?:\^\{?[23]\}?)?)*(?P<end>\$\$?|\\[\])])"
)
_EQUATED = re.compile(r"[\s$&{}]*=[\s$&{}]*\Z")
# A value before the box: any one before "or", one that begins a line before a comma, and one that equals the box.
_VALUE = rf"(?P<value>\$[^$\n]{{1,80}}\$|(?<![\w.,]){_NUMBER})"
_NAMED = r"(?:[\s$(\[{*]|\\[,;:! (\[]|\\text\{|[A-Za-z](?:_[A-Za-z0-9])?\s*=)*\Z"
_BEFORE = re.compile(
    rf"(?:{_VALUE}[\s$,*]*(?:\\(?:text|mbox)\{{\s*)?(?:(?:or|vs\.?|versus)\b|\\lor|\\vee|/)[\s}}]*"
    rf"|(?:\A|\n)[\s$*]*{_VALUE.replace('value', 'first')}[\s$*]*(?:,|;|and\b|&)\s*"
    rf"|(?:\A|\n) ?[-*\u2022] [\s$*]*{_VALUE.replace('value', 'item')}[\s$*]*\n ?[-*\u2022] \s*){_NAMED}"
    rf"|(?:\$|\\[\[(])\s*(?P<equated>{_NUMBER})\s*=\s*\Z",
    re.IGNORECASE,
)
MAX_BOXES = 64
MAX_SEPARATOR_CHARS = 80


class Answers(NamedTuple):
    """The answers of a message, as they are written.

    answer:  what the last box holds, or what the last phrase announces.
    listed:  all that stand beside it, itself included, in the order of the text.
    earlier: what a phrase announced before the box, None if nothing.
    """

    answer: str
    listed: tuple[str, ...]
    earlier: str | None = None


class _Box(NamedTuple):
    """A box in a text: where it begins, what it holds (`start` to `stop`), and where it ends."""

    begin: int
    start: int
    stop: int
    end: int


def answers_of(text: str) -> tuple[Answers | None, str | None]:
    """The answers that a message names, or (None, why it names none)."""
    boxes, reason = _boxes(text)
    if reason == NO_ANSWER:
        announced, earlier = after_phrase(text)
        return (Answers(announced[0], announced, earlier), None) if announced else (None, NO_ANSWER)
    if not boxes:
        return None, reason
    last = boxes[-1]
    answer = text[last.start : last.stop]
    listed, begin = _listed(text, boxes)
    if before := _BEFORE.search(text, max(0, begin - MAX_SEPARATOR_CHARS), begin):
        listed.insert(0, next(value for value in before.groups() if value).strip("$"))
    others = other_answers(listed[-1], _after_formula(text, last))
    return Answers(listed[-1], (*listed, *others), earlier_answer(text, begin, answer)), None


def last_box(text: str) -> tuple[str | None, str | None]:
    """What the last box of a reference solution holds, or the last boxes if they are a list; or (None, why not).

    The text around them explains them: a reference does not hedge.
    """
    boxes, reason = _boxes(text)
    if not boxes:
        return None, reason
    return ", ".join(dict.fromkeys(_listed(text, boxes)[0])), None


def _boxes(text: str) -> tuple[list[_Box], str | None]:
    r"""The boxes that are closed, by their ends, or none and the reason.

    A box opened after the last of them and never closed means that the text was cut in its answer.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return [], NO_ANSWER
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
        return [], CUT_IN_BOX
    return boxes, None if boxes else NO_ANSWER


def _after_formula(text: str, box: _Box) -> str:
    """The text after a box: what its formula still says, if anything, and what follows that."""
    after = text[box.end : box.end + MAX_CHARS]
    line = text.rfind("\n", 0, box.begin) + 1
    is_open = text.count("$", line, box.begin) % 2
    closing = _CLOSING.match(after)
    if not closing or (closing["end"] == "$" and not is_open):
        return f"${after}" if is_open else after
    return after[closing.end() :]


def _listed(text: str, boxes: Sequence[_Box]) -> tuple[list[str], int]:
    """The content of the last box after those of the boxes that are listed before it, and where they begin."""
    last = boxes[-1]
    contents, begin = [text[last.start : last.stop]], last.begin
    for box in reversed(boxes[:-1]):
        if box.end > begin:
            continue  # inside one of these
        if len(contents) == MAX_BOXES or begin - box.end > MAX_SEPARATOR_CHARS:
            break
        between = text[box.end : begin]
        if _EQUATED.match(between):
            contents[-1] = f"{text[box.start : box.stop]} = {contents[-1]}"
        elif _lists(between):
            contents.append(text[box.start : box.stop])
        else:
            break
        begin = box.begin
    return contents[::-1], begin


def _lists(between: str) -> bool:
    """Whether the text between two boxes makes them one list, and not two statements."""
    if _BOX_SEPARATOR.match(between):
        return True
    is_new = _NEW_SENTENCE.search(between) and not _ALTERNATIVE.search(between)
    return not is_new and not CONCLUDING.search(between)
