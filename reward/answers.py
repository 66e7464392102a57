r"""Finds the final answer in a response and compares it with the gold answer.

A response of gpt-oss is a sequence of harmony messages; only the last message of the `final` channel is read. Text of
other models is read as a whole, without their thoughts before `</think>`. The last `\boxed{...}` that is not empty is
the answer, or else what the last phrase such as "the answer is" announces (`extraction`).

Two integers are compared by their digits, which is all that AIME needs. Other answers go to `equivalence`.
"""

import re
from dataclasses import dataclass

from reward.comparison import SIGN, last_side, split
from reward.equivalence import equal
from reward.extraction import NO_ANSWER, extract_answers
from reward.notation import MAX_ANSWER_CHARS, rational, spell, split_unit, squeeze

NO_FINAL = "no final message"
TOO_LONG = "answer too long"

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
