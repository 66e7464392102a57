r"""Finds the answer in a message: in its last box that is not empty, or else after the last phrase (`phrases`).

A box commits the model to its content, so that no text outside of it is read but a minus sign or a unit directly beside
it. Boxes with nothing but commas, "and" or "or" between them are one list. A box inside a box means nothing.
String work in linear time.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from reward.notation import spell
from reward.phrases import extract_after_phrase
from reward.units import split_unit

NO_ANSWER = "no \\boxed and no answer phrase"
CUT_IN_BOX = "cut inside \\boxed"

# A box may have digits or a fraction without braces.
_BARE = r"[+-]?[0-9]+(?:[.,][0-9]+)*|\\[dt]?frac(?: ?(?:[0-9]|\{[^{}]{0,99}\})){2}"
# Escaped braces and line breaks are skipped as pairs, but "\\boxed" (a doubled backslash) still opens a box.
_BRACE = re.compile(
    rf"(?P<box>\\f?box(?:ed)?(?![A-Za-z])\s*(?:\{{|\Z|(?P<bare>{_BARE})))|\\(?:[{{}}]|\\(?!f?box))|[{{}}]"
)

# What may stand between the boxes of one list: signs, "and" or "or", labels of items, and a name:
# `x = \boxed{1}$ or $x = \boxed{2}`.
_JOINING = r"(?:and|or)(?![A-Za-z])"
_SEPARATOR = re.compile(
    rf"(?:[\s$.,;()\[\]{{}}~&*]|\\[,;:! ()\[\]\\$]|\\(?:q?quad|lor|vee)(?![A-Za-z])|(?<![A-Za-z]){_JOINING}"
    rf"|\\(?:text|mbox|textrm|mathrm)\{{[\s,.]*(?:{_JOINING}[\s,.]*)*\}}"
    r"|(?<![A-Za-z])(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]+\}))?[\s&]*="
    r"|(?<=\n)[-\u2022]\s|(?<![\w.])(?:[0-9]{1,2}|[a-z])[.)])*\Z"
)
_UNIT = re.compile(
    r"(?:[ ~]|\\[,;:! ])*(?P<unit>\\?%|(?:\^ ?\{ ?\\circ ?\}|\^ ?\\circ|°)(?:[ ~]*\\(?:text|mathrm) ?\{ ?[CF] ?\})?"
    r"|\\(?:text|mbox|textrm|mathrm) ?\{[^{}]{1,40}\}(?:\^\{?[23]\}?)?)"
)
_CURRENCY = re.compile(r"\\\$ ?\Z")
# The sign of a box: no difference, and no item of a list.
_MINUS = re.compile(r"(?:(?:=|\\[(\[]) ?- ?|(?:\$|\n|\A)-)\Z")
MAX_BOXES = 64
MAX_SEPARATOR_CHARS = 80


class _Box(NamedTuple):
    """A box in a text: where it begins, what it holds (`start` to `stop`), and where it ends."""

    begin: int
    start: int
    stop: int
    end: int


def extract_answers(text: str) -> tuple[tuple[str, ...], str | None]:
    """The answers that a message gives as one list, mostly of one, and None; or none and the reason."""
    answers, reason = extract_boxed(text)
    if reason != NO_ANSWER:
        return answers, reason
    announced = extract_after_phrase(text)
    return ((announced,), None) if announced else ((), NO_ANSWER)


def extract_boxed(text: str) -> tuple[tuple[str, ...], str | None]:
    """The content of the last box that is not empty, after those of the boxes listed with it; or none and the reason.

    A box that is opened after the last one and never closed means that the text was cut in its answer.
    """
    boxes, is_cut = _boxes(text)
    if is_cut:
        return (), CUT_IN_BOX
    while boxes and not spell(_content(text, boxes[-1])):
        empty = boxes.pop()
        while boxes and boxes[-1].begin > empty.begin:  # inside it
            boxes.pop()
    return (_collect_listed(text, boxes), None) if boxes else ((), NO_ANSWER)


def _boxes(text: str) -> tuple[list[_Box], bool]:
    """The boxes that are closed, by their ends, and whether another one is open after them."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return [], False
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
    return boxes, any(box is not None and start > last_end for start, box in open_braces)


def _collect_listed(text: str, boxes: Sequence[_Box]) -> tuple[str, ...]:
    """The answers of the last box, and of those before it that are listed with it."""
    answers: list[str] = []
    begin = len(text)
    for box in reversed(boxes):
        if box.end > begin:
            continue  # inside one of these
        start, (answer, end) = box.begin, _answer(text, box)
        if _MINUS.search(text, max(0, start - 6), start):
            start = text.rindex("-", 0, start)
            answer = f"-({answer})" if re.search("[-+]", answer) else f"-{answer}"
        is_listed = begin - end <= MAX_SEPARATOR_CHARS and _SEPARATOR.match(text[end:begin])
        if answers and (len(answers) == MAX_BOXES or not is_listed):
            break
        answers.append(answer)
        begin = start
    return tuple(answers[::-1])


def _answer(text: str, box: _Box) -> tuple[str, int]:
    """What a box says, with the unit beside it if it has none itself, and where that ends."""
    content, unit = _content(text, box), _UNIT.match(text, box.end)
    if unit and not split_unit(spell(f"1{unit['unit']}"))[1]:
        unit = None
    end = unit.end() if unit else box.end
    if (not unit and not _CURRENCY.search(text, max(0, box.begin - 3), box.begin)) or split_unit(spell(content))[1]:
        return content, end
    return f"{content}{unit['unit']}" if unit else f"\\${content}", end


def _content(text: str, box: _Box) -> str:
    """What a box holds, without the boxes inside it."""
    content = text[box.start : box.stop]
    if "box" not in content:
        return content
    pieces, are_boxes, at = [], [], 0  # whether each open group is a box
    for match in _BRACE.finditer(content):
        begin, end = match.span()
        if match["bare"]:
            end = match.start("bare")
        elif match[0].endswith("{") and match[0] != "\\{":
            are_boxes.append(bool(match["box"]))
        if match["box"] or (match[0] == "}" and are_boxes and are_boxes.pop()):
            pieces.append(content[at:begin])
            at = end
    return " ".join([*pieces, content[at:]]).strip()
