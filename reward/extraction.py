r"""Finds the answer in a message: in its last `\boxed{...}`, or after the last phrase such as "the answer is".

String work in linear time. A message that names several answers gives all of them, so that no single one is credited.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from reward.alternatives import MAX_CHARS, other_answer
from reward.notation import MAX_ANSWER_CHARS, separated

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
_CONCLUDING = re.compile(
    r"\b(?:so|then|thus|hence|therefore|gives?|giving|which|yields?|implies|means?|get|gets|follows?|leaves|leaving|"
    r"now|next|finally|after|becomes?|since|because|from|where|no|wait|actually|wrong|instead)\b|=>|\\(?:Right|right|im)",
    re.IGNORECASE,
)
_NEW_SENTENCE = re.compile(r"[.!?](?=[\s*$)]|\\\])|\n")
_ALTERNATIVE = re.compile(r"\b(?:or|maybe|perhaps|possibly|alternatively|otherwise|else)\b", re.IGNORECASE)
_CLOSING = re.compile(
    r"(?:[\s}.]|\\[,;:! ]|\^\\circ|\\end\{[a-z*]+\}"
    r"|\\(?:text|mathrm|mbox)\{[a-z ./]*\}(?:\^\{?[23]\}?)?)*(?P<end>\$\$?|\\[\])])"
)
_EQUATED = re.compile(r"[\s$&{}]*=[\s$&{}]*\Z")
# A value before the box: any one before "or", and one that begins a line before a comma.
_VALUE = rf"(?P<value>\$[^$\n]{{1,80}}\$|(?<![\w.,]){_NUMBER})"
_NAMED = r"(?:[\s$(\[{*]|\\[,;:! (\[]|\\text\{|[A-Za-z](?:_[A-Za-z0-9])?\s*=)*\Z"
_BEFORE = re.compile(
    rf"(?:{_VALUE}[\s$,*]*(?:\\(?:text|mbox)\{{\s*)?(?:(?:or|vs\.?|versus)\b|\\lor|\\vee|/)[\s}}]*"
    rf"|(?:\A|\n)[\s$*]*{_VALUE.replace('value', 'first')}[\s$*]*(?:,|;|and\b|&)\s*"
    rf"|(?:\A|\n) ?[-*\u2022] [\s$*]*{_VALUE.replace('value', 'item')}[\s$*]*\n ?[-*\u2022] \s*){_NAMED}",
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
# An announced answer ends with its line or sentence, before a reason, a condition or a denial, and at a model's end
# token. The semicolon of a formula, of `\;` and of a tuple does not end it.
_PHRASE_END = re.compile(
    r"\n|\.(?=\s|\*|\Z)|<\||</s>|,? \(?(?:where|when|if|by|after|for|unless|because|since|which)\b"
    r"|,? \(?(?:as(?! well\b)|so(?! (?:is|are|does)\b))\b|[!?](?=\s|\Z)|(?P<inner>(?<!\\);|(?<=[^\s]):(?=\s))"
    r"|,(?: but| and)? not\b| and not\b| and (?:this|it|that|the|we)\b"
    r"|,? \(?(?:attained|achieved|obtained|given|that is|i\.e\.)"
    r"|, with\b| \((?:the|see|from|using|with|counting|including|one|we)\b"
)
# A judgement of an answer is not an answer, and neither are several words without a number.
_PROSE = re.compile(
    r"(?:(?:indeed|also|in fact|now|not|definitely|therefore) )?"
    r"(?:correct|incorrect|right|wrong|verified|confirmed|valid|invalid|unique|consistent|plausible|reasonable|sound|"
    r"final)\b[^0-9\\$=]*\Z|[a-z']+(?:,? [a-z']+){3,}\Z"
)
# Words before a phrase of the same sentence which say that it announces the answer of one case, or another answer.
_ONE_CASE = re.compile(
    r"\b(?:if|when|for (?!the|this|our|that)|otherwise|unless|assuming|including|excluding|counting|another|other|"
    r"second|backup|fallback|alternative|alternate|possible|also|or|maybe|perhaps|possibly)\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
MAX_LEAD_CHARS = 120
# How many phrases are looked at for one that is followed by an answer.
MAX_PHRASES = 20
_DISPLAYED = re.compile(r"\\\[|\$\$")


class _Box(NamedTuple):
    """A box in a text: where it begins, what it holds (`start` to `stop`), and where it ends."""

    begin: int
    start: int
    stop: int
    end: int


def last_box(text: str) -> tuple[str | None, str | None]:
    r"""The content of the `\boxed{...}` that closes last, or (None, why not).

    A box opened after that one and never closed means that the text was cut in its answer. A response is not right by
    naming several answers: boxes of one sentence are one list, unless words such as "so" and "gives" conclude the last
    one from the others. So is a box with the answer that stands before it ("205 or") or after it (`alternatives`).
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
    answer = _joined(text, boxes)
    other = other_answer(answer, _after_formula(text, boxes[-1]))
    return (f"{answer}, {other}" if other else answer), None


def _after_formula(text: str, box: _Box) -> str:
    """The text after a box: what its formula still says, if anything, and what follows that."""
    after = text[box.end : box.end + MAX_CHARS]
    line = text.rfind("\n", 0, box.begin) + 1
    is_open = text.count("$", line, box.begin) % 2
    closing = _CLOSING.match(after)
    if not closing or (closing["end"] == "$" and not is_open):
        return f"${after}" if is_open else after
    return after[closing.end() :]


def _joined(text: str, boxes: Sequence[_Box]) -> str:
    """The content of the last box, and of those that are listed before it."""
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
    before = _BEFORE.search(text, max(0, begin - MAX_SEPARATOR_CHARS), begin)
    if before:
        contents.append((before["value"] or before["first"] or before["item"]).strip("$"))
    contents.reverse()
    return ", ".join(contents) if any(content != contents[0] for content in contents) else contents[0]


def _lists(between: str) -> bool:
    """Whether the text between two boxes makes them one list, and not two statements."""
    if _BOX_SEPARATOR.match(between):
        return True
    is_new = _NEW_SENTENCE.search(between) and not _ALTERNATIVE.search(between)
    return not is_new and not _CONCLUDING.search(between)


def after_phrase(text: str) -> str | None:
    """The answer that the last phrase announces. None if the text has no such phrase, or nothing follows it.

    An earlier phrase counts if the last one only judges the answer ("is correct"). A phrase of one case or of another
    answer ("if zero counts, the answer is 205") adds to the answer of an earlier phrase.
    """
    found, one_case = None, None
    for phrase in islice(reversed(list(_PHRASE.finditer(text))), MAX_PHRASES):
        content = _announced(text, phrase.end())
        if content and not _PROSE.match(content):
            if one_case is not None:
                return content if content == one_case else f"{content}, {one_case}"
            if not _ONE_CASE.search(text, max(0, phrase.start() - MAX_LEAD_CHARS), phrase.start()):
                return content
            one_case = content
        found = found or content
    return one_case or found


def _announced(text: str, start: int) -> str | None:
    # One character above the limit shows that an answer is too long.
    rest = text[start : start + MAX_ANSWER_CHARS + 1]
    displayed = _DISPLAYED.match(rest)
    if displayed:
        closing = rest.find("\\]" if displayed[0] == "\\[" else "$$", displayed.end())
        if closing < 0:
            closing = len(rest)
        shown, end = rest[displayed.end() : closing], start + closing + len(displayed[0])
    else:
        shown = _up_to_end(rest)
        end = start + len(shown)
    other = other_answer(shown, text[end : end + MAX_CHARS])
    shown = separated(shown)
    for delimiter in ("**", "`", "\\(", "\\)"):
        shown = shown.replace(delimiter, "")
    shown = shown.strip()
    return (f"{shown}, {other}" if other else shown) or None


def _up_to_end(rest: str) -> str:
    for end in _PHRASE_END.finditer(rest):
        if not (end["inner"] and _is_inside(rest[: end.start()])):
            return rest[: end.start()]
    return rest


def _is_inside(before: str) -> bool:
    """Whether a formula or a bracket is open at the end of a text. The brackets of (1, 2] match each other."""
    dollars = before.count("$") - before.count("\\$")
    return dollars % 2 == 1 or sum(map(before.count, "([{")) > sum(map(before.count, ")]}"))
