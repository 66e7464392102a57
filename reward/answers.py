r"""Finds the final answer in a response and compares it with the gold answer.

A response of gpt-oss is a sequence of harmony messages; only the last message of the `final` channel is read,
because a boxed value in the `analysis` channel is a thought, not an answer. In that message the last complete
`\boxed{...}` is the answer. Everything here is string work in linear time: no network, no evaluation of
expressions, nothing that can hang.
"""

import re
from dataclasses import dataclass

NO_FINAL = "no final message"
NO_BOX = "no \\boxed"
CUT_IN_BOX = "cut inside \\boxed"
EMPTY_BOX = "empty \\boxed"
LONG_BOX = "\\boxed too long"

# Longer boxes hold an essay, not an answer.
MAX_ANSWER_CHARS = 1000

MARKER = re.compile(r"<\|(?:start|channel|message|constrain|end|return|call)\|>")
_FINAL_HEADER = re.compile(r"<\|channel\|>\s*final\s*(?:<\|constrain\|>[^<]*)?<\|message\|>")
_MESSAGE_END = re.compile(r"<\|(?:start|channel|message|end|return|call|endoftext)\|>")

# Escaped braces and line breaks are skipped as pairs, but "\\boxed" (a doubled backslash) still opens a box.
_BRACE = re.compile(r"(?P<box>\\boxed\s*(?:\{|\Z))|\\(?:[{}]|\\(?!boxed))|[{}]")

_SPACE = re.compile(r"(?:\\[,;: ]|~|\\(?:quad|qquad|thinspace)(?![A-Za-z])|\s)+")
# A space between two digits stays: "3 3" is not 33.
_LOOSE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|boxed|displaystyle)\s*\{([^{}]*)\}\Z")
_UNIT_WORDS = (
    r"(?:square|cubic|sq|cu)?\s*(?:units?|degrees?|deg|radians?|rad|percent|points?|"
    r"mm|cm|km|meters?|metres?|centimeters?|kilometers?|inches|inch|in|feet|foot|ft|yards?|yd|miles?|mi|"
    r"seconds?|sec|minutes?|min|hours?|hr|days?|weeks?|months?|years?|"
    r"dollars?|cents?|grams?|kg|liters?|litres?|ways|people)\.?"
)
# A single letter is a unit only inside \text{...}: a bare "3m" is three times m.
_UNIT = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\circ|°|\\degree|\\%|%|"
    rf"(?:\\(?:text|textrm|mathrm|mbox)\s*\{{\s*(?:{_UNIT_WORDS}|[mshg])\s*\}}|(?<![A-Za-z\\]){_UNIT_WORDS})"
    r"(?:\s*\^\s*(?:[23]|\{[23]\}))?)\Z"
)
_INTEGER = re.compile(r"([+-]?)\s*([0-9]+|[0-9]{1,3}(?:[, ][0-9]{3})+)(?:\.0*)?\Z")


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    correct: the answer equals the gold answer.
    answer:  the answer in canonical form, None when the response has none.
    reason:  why there is no answer, None when there is one.
    """

    correct: bool
    answer: str | None
    reason: str | None


def grade(response: str, gold: str) -> Grade:
    r"""Grades the last `\boxed{...}` of the response's final message against `gold`; raises on no text."""
    message = final_message(response)
    if message is None:
        return Grade(False, None, NO_FINAL)
    content, reason = last_box(message)
    if content is None:
        return Grade(False, None, reason)
    if len(content) > MAX_ANSWER_CHARS:
        return Grade(False, None, LONG_BOX)
    answer = canonical(content)
    if not answer:
        return Grade(False, None, EMPTY_BOX)
    return Grade(answer == canonical(gold), answer, None)


def final_message(response: str) -> str | None:
    """The text of the last final-channel message; the whole text if it has no harmony marker; else None.

    A message ends at the next marker or at the end of the text: a reply cut by the token limit counts.
    Markers are recognised in the decoded text, so a model that spells one with ordinary tokens is believed.
    """
    if not MARKER.search(response):
        return response
    start = None
    for header in _FINAL_HEADER.finditer(response):
        start = header.end()
    if start is None:
        return None
    end = _MESSAGE_END.search(response, start)
    return response[start : end.start() if end else len(response)]


def canonical(answer: str) -> str:
    """One spelling for answers that are equal: "033", "33.0", "33 cm" and "33^\\circ" all give "33".

    An answer that is no integer keeps its text without spaces and sizing commands.
    """
    text = answer[: MAX_ANSWER_CHARS + 1].strip().strip("$").replace("{,}", ",").replace("\\!", "")
    text = _SPACE.sub(" ", text.replace("\u2212", "-").replace("\\$", "")).strip()
    for _ in range(3):
        if not (wrapped := _WRAPPER.match(text)):
            break
        text = wrapped[1].strip().strip("$")
    number = _INTEGER.match(_UNIT.sub("", text, count=1).strip())
    if number:
        digits = re.sub("[, ]", "", number[2]).lstrip("0") or "0"
        return "-" + digits if number[1] == "-" and digits != "0" else digits
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return _LOOSE_SPACE.sub("", text)


def last_box(text: str) -> tuple[str | None, str | None]:
    r"""The content of the `\boxed{...}` that closes last, or (None, why not).

    A box opened after that one and never closed means that the text was cut in its answer.
    """
    if "\\boxed" not in text:
        return None, NO_BOX
    open_braces: list[tuple[int, bool]] = []  # where the content starts, and whether it is a box
    last: tuple[int, int] | None = None
    for match in _BRACE.finditer(text):
        if match["box"]:
            open_braces.append((match.end(), True))
        elif match[0] == "{":
            open_braces.append((match.end(), False))
        elif match[0] == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box:
                last = (start, match.start())
    last_end = last[1] if last else -1
    if any(is_box and start > last_end for start, is_box in open_braces):
        return None, CUT_IN_BOX
    if last is None:
        return None, NO_BOX
    return text[last[0] : last[1]], None
