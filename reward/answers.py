r"""Finds the final answer in a response and compares it with the gold answer.

A response of gpt-oss is a sequence of harmony messages; only the last message of the `final` channel is read. Text of
other models is read as a whole, without their thoughts before `</think>`. The last `\boxed{...}` that is not empty is
the answer, or else what the last phrase such as "the answer is" announces. Boxes with nothing but commas, "and" or "or"
between them are one list. Extraction is string work in linear time.

Two integers are compared by their digits, which is all that AIME needs. Other answers go to `equivalence`. The gold
answer is in a prompt's label, with the split that the problem belongs to.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from reward.comparison import SIGN, last_side, split
from reward.equivalence import equal
from reward.notation import MAX_ANSWER_CHARS, rational, spell, split_unit, squeeze
from reward.settings import SettingsError

SPLITS = ("train", "eval")
# Dates, telephone numbers, words, and placeholders for a missing answer. The grader compares none of them
_NO_ANSWER = re.compile(r"\d+(-\d+)+|\d+(/\d+){2,}|n/?a|nan|(?=.*[a-z]{4})[a-z]+( [a-z]+)*", re.I)

NO_FINAL = "no final message"
TOO_LONG = "answer too long"
NO_ANSWER = "no \\boxed and no answer phrase"
CUT_IN_BOX = "cut inside \\boxed"

MARKER = re.compile(r"<\|(?:start|channel|message|constrain|end|return|call)\|>")
_START = "<|start|>"
_FINAL_HEADER = re.compile(r"<\|channel\|>\s*final\s*(?:<\|constrain\|>[^<]*)?<\|message\|>")
_MESSAGE_END = re.compile(r"<\|(?:start|channel|message|end|return|call|endoftext)\|>")
# The formulas, sentences and lines of a problem, each short enough to be spelled.
_PIECES = re.compile(r"\$+|(?<!\\)\\[()\[\]]|\n|(?<=[.?!]) ")
_TOKEN = re.compile(r"\\[A-Za-z]+|[^ ]")
# A copy is a whole side: no sign continues it. A point ends the sentence unless a digit follows it.
_BEFORE = r"(?<![-+*/^_\\({}0-9A-Za-z.)])(?<![-+*/^_({}0-9)] )"
_AFTER = r"(?![A-Za-z0-9]|\.[0-9]| ?(?:[-+*/^_!({]|\\(?!text)))"

_BRACE = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])\s{0,9}(?:\{|\Z|(?P<bare>-?\d[\d.]*\d|\d))|\\[{}\\](?!f?box)|[{}]")
# What may stand between the boxes of one list: signs, "and", "or" or "perhaps", a name, the unit of the first.
_JOINING = re.compile(
    r"(?:[\s$.,;()&*/]|\n- |\d\. |\([a-z]\)|\\lor|\\[,;: ()\[\]\\]|\\q?quad|\b(?:and|or|maybe|perhaps|possibly)\b|\\%"
    r"|\\(?:text|mbox)\{[\s,]*(?:and|or)?[\s,]*\}|\\?[A-Za-z]+(?:_\{?\w\}?)?\s*=|\\text\{ ?[a-z]{1,12}\}|\^\\circ)*\Z"
)
_BESIDE = re.compile(
    r"(?:[ ~]|\\[,;: ])*(\\?%|\^ ?\{? ?\\circ ?\}?(?:\\text\{[CF]\})?"
    r"|\\(?:text|mbox|mathrm) ?\{[^{}]{1,40}\}(?:\^\{?[23]\}?)?)"
)
_PHRASE = re.compile(
    r"(?:\banswer(?: to [a-z ]{1,40})?\**(?: is| equals| =)?(?: therefore| thus| also)?|^####)(?![a-z])[\s:*,=]{0,9}",
    re.IGNORECASE | re.MULTILINE,
)
_SAID = re.compile(r"(?s:\\\[.*?\\\]|\$\$.*?\$\$)|.*")
_END = re.compile(
    r"[.?](?:\s|\Z|\*)|(?<=[$*)])!| \((?!or|and)(?=[a-z]{2})|[;,] [^\d\\$]*\Z"
    r"|,? (?:since|because|as|which|where|for|by|when|if)\b|[;,.] not\b|<[|/]"
)
# What takes an answer back or adds a second one: "or 151", "(possibly 151)", "? No, 151", "; if wrong, 151".
_HEDGE = re.compile(
    r"[\s$.,;:(*)\]\\]{0,9}(?:(?:or|maybe|perhaps|possibly|alternatively|if (?:not|wrong))\b|\?(?= ))[^\n\d=]{0,12}?"
    r"(?P<first>-?\d[\d.,/]*)"
    r"|[\s$]{0,9}(?:for|if|when)\b[^\n.]{0,30}\band (?P<second>-?\d[\d.,/]*) (?:for|if|when)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[A-Za-z][^=]* (?:is|are|equals?)\b(?! not)")


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    correct: the answer equals the gold answer.
    answer:  the answer in canonical form, None if the response has no answer.
    reason:  why the answer is missing, None if the response has one.
    """

    correct: bool
    answer: str | None
    reason: str | None


def grade(response: str, gold: str, prompt: str | None = None) -> Grade:
    """Grades the answer in `response` against `gold`. Thread-safe; needs no network.

    A formula that is copied from `prompt`, the problem's text, is not an answer unless `gold` is spelled like it.

    Raises `equivalence.Unavailable` if two answers need algebra and no worker process is available, nothing else.
    """
    message = final_message(response)
    if message is None:
        return Grade(False, None, NO_FINAL)
    answers, reason = extract_answers(message)
    if reason:
        return Grade(False, None, reason)
    content = answers[-1]
    if any(not equal(other, content) for other in answers[:-1]):
        content = ", ".join(answers)
    if len(content) > MAX_ANSWER_CHARS:
        return Grade(False, None, TOO_LONG)
    answer = canonical(content)
    if not answer:
        return Grade(False, None, NO_ANSWER)
    said = content if "=" in gold else last_side(spell(content))
    return Grade(equal(said, gold) and not (prompt and repeats_prompt(content, gold, prompt)), answer, None)


def final_message(response: str) -> str | None:
    """The text of the assistant's last final-channel message; the whole text if it has no harmony marker; else None.

    A message ends at the next marker or at the end of the text: a reply cut by the token limit counts.
    A marker in the text counts as the token: `grpo.rollout.response_text` breaks those that a model only spells.
    Without markers, the text before the last `</think>` is dropped. A `<think>` that is never closed gives None, and so
    does a blank text.
    """
    if not MARKER.search(response):
        message = response.rpartition("</think>")[2]
        return message if message.strip() and "<think>" not in message else None
    start = None
    for header in _FINAL_HEADER.finditer(response):
        if _is_by_assistant(response, header.start()):
            start = header.end()
    if start is None:
        return None
    end = _MESSAGE_END.search(response, start)
    return response[start : end.start() if end else len(response)]


def _is_by_assistant(response: str, channel: int) -> bool:
    """Whether the header whose channel starts at `channel` has no author, or is the assistant's without a recipient."""
    before = response.rfind("<|", 0, channel)
    is_named = before >= 0 and response.startswith(_START, before)
    return not is_named or response[before + len(_START) : channel].strip() == "assistant"


def canonical(answer: str) -> str:
    r"""One spelling for equal integers: "033", "33.0", "33 cm" and "33^\circ" all give "33"; other answers spelled."""
    text = spell(answer)
    number = rational(split_unit(text)[0])
    return str(number.numerator) if number is not None and number.denominator == 1 else squeeze(text)


def repeats_prompt(answer: str, gold: str, prompt: str) -> bool:
    """Whether an answer is a formula of the prompt, and is neither a number nor spelled like the gold answer.

    `12+34` equals 46, and says nothing that the problem does not. Formulas are compared as they are spelled, so `34+12`
    is no copy of `12+34`.
    """
    said = _value(answer)
    if not re.search("[^A-Za-z]", said) or rational(said) is not None or said == _value(gold):
        return False
    formula = re.compile(_BEFORE + " *".join(map(re.escape, _TOKEN.findall(said))) + _AFTER)
    return any(formula.search(spell(piece)) for piece in _PIECES.split(prompt) if piece)


def _value(text: str) -> str:
    """The last side of an equation, or a whole text, spelled and without its unit and brackets."""
    text = spell(text)
    sides, signs = split(text, SIGN)
    side = squeeze(split_unit(sides[-1] if set(signs) <= {"="} else text)[0].strip())
    return side[1:-1] if re.match(r"\([^()]*\)\Z", side) and "," not in side else side


def extract_answers(text: str) -> tuple[tuple[str, ...], str | None]:
    """The answers that a message gives as one list, mostly of one, and None; or none and the reason."""
    answers, reason = extract_boxed(text)
    if reason != NO_ANSWER:
        return answers, reason
    for phrase in reversed(list(_PHRASE.finditer(text))):
        said = _SAID.findall(text[phrase.end() : phrase.end() + MAX_ANSWER_CHARS])[0]
        end = next((m for m in _END.finditer(said, 1) if said.count("$", 0, m.start()) % 2 == 0), None)
        said = said[: end.start() if end else None]
        hedges = _find_hedges(text, phrase.end() + len(said))
        said = said[match.end() :] if (match := _SENTENCE.match(said)) else said
        if re.search(r"\d|\\|\$|\A\W*\w+\W*\Z", said) and not re.match(r"\W*(?:correct|right|consistent)\b", said):
            return (*hedges, said.strip(" *`")), None
    return (), NO_ANSWER


def extract_boxed(text: str) -> tuple[tuple[str, ...], str | None]:
    """The content of the last box that is not empty, after those listed with it; or none and the reason."""
    boxes, is_cut = _boxes(text)
    if is_cut:
        return (), CUT_IN_BOX
    answers: list[str] = []
    hedges: tuple[str, ...] = ()
    begin = 0
    for start, first, last, end in reversed(boxes):
        if answers and end > begin:
            continue  # inside it
        if answers and (begin - end > 80 or not _JOINING.match(text[end:begin])):
            break
        content = text[first : min(last, first + 9 * MAX_ANSWER_CHARS)]  # of boxes inside one another, too
        content = re.sub(r"\\f?box(?:ed)? ?(?=\{)", "", content)[: MAX_ANSWER_CHARS + 1]
        if not spell(content):
            continue
        if not answers and (unit := _BESIDE.match(text, end)):
            content += unit[1] if not re.search(r"\\text|%|circ", content) else ""
        minus = re.search(r"(?:(?:=|\\[(\[]) ?- ?|(?:\$|\n|\A)-)\Z", text[max(0, start - 6) : start])
        hedges = hedges if answers else _find_hedges(text, end)
        answers.insert(0, content if not minus else f"-({content})" if re.search("[-+]", content) else f"-{content}")
        begin = start
    return ((*hedges, *answers), None) if answers else ((), NO_ANSWER)


def _find_hedges(text: str, end: int) -> tuple[str, ...]:
    """The number that replaces the answer before `end`, or stands beside it as an alternative; otherwise ()."""
    match = _HEDGE.match(text, end)
    return (match["first"] or match["second"],) if match else ()


def _boxes(text: str) -> tuple[list[tuple[int, int, int, int]], bool]:
    """(start, start and end of the content, end) of the closed boxes, and whether one is open after them."""
    if "box" not in text:
        return [], False
    open_braces: list[tuple[int, int]] = []
    boxes: list[tuple[int, int, int, int]] = []
    for match in _BRACE.finditer(text):
        if match["bare"]:
            boxes.append((match.start(), *match.span("bare"), match.end()))
        elif match[0] == "}":
            if open_braces:
                start, first = open_braces.pop()
                if start >= 0:
                    boxes.append((start, first, match.start(), match.end()))
        elif match[0][-1] not in "{}\\" or "box" in match[0]:
            open_braces.append((match.start(), match.end()))
        elif match[0] == "{":
            open_braces.append((-1, match.end()))
    last = boxes[-1][2] if boxes else -1
    return boxes, any(start >= 0 and first > last for start, first in open_braces)


class LabelError(SettingsError):
    """An invalid label."""


class Label(NamedTuple):
    """The gold answer of a rollout, and the split it belongs to ("train" or "eval")."""

    answer: str
    split: str


def open_label(label: Any) -> Any:
    """The object in a label of JSON; anything else unchanged."""
    if isinstance(label, str) and label.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # a gold answer may start with a brace: {1,2}
            return json.loads(label)
    return label


def parse_label(label: Any) -> Label:
    """Reads a label: the gold answer itself (of the train split), or JSON with `answer` and `split`.

    Raises LabelError for a label without an answer or with an unknown split.
    """
    fields = open_label(label)
    if not isinstance(fields, dict):
        fields = {"answer": fields}
    answer, split = fields.get("answer"), fields.get("split", "train")
    if answer is None or isinstance(answer, dict | list) or not str(answer).strip():
        raise LabelError("a label has no answer", "give the gold answer or JSON with `answer` and `split`")
    if split not in SPLITS:
        raise LabelError("a label has an unknown split", f"use one of {', '.join(SPLITS)}")
    return Label(str(answer), split)


def is_gradable(answer: str) -> bool:
    """Tell whether the grader can compare a gold answer: a label of words is for a reward of the user's own."""
    return not _NO_ANSWER.fullmatch(answer.strip())
