r"""Finds the final answer in a response and compares it with the gold answer.

A response of gpt-oss is a sequence of harmony messages; only the last message of the `final` channel is read,
because a boxed value in the `analysis` channel is a thought, not an answer. Text of other models is read as a whole,
without their thoughts before `</think>`. The last `\boxed{...}` that is not empty is the answer. Without a box it is
the text after the last phrase such as "the answer is" (`extraction`).

Two integers are compared as integers, which is all that AIME needs. Other answers go to `equivalence`. If the gold
answer is not a relation, `quantities` reads equations: `m+n = 204` is 204.
"""

import re
from dataclasses import dataclass

from reward.copied import is_copied
from reward.equivalence import equal
from reward.extraction import NO_ANSWER, extract_answers
from reward.literals import integer, parse_in_base
from reward.notation import MAX_ANSWER_CHARS, spell, squeeze
from reward.quantities import split_equation
from reward.units import split_unit

NO_FINAL = "no final message"
TOO_LONG = "answer too long"

MARKER = re.compile(r"<\|(?:start|channel|message|constrain|end|return|call)\|>")
_START = "<|start|>"
_RELATION = re.compile(r"[=<>]|\\(?:neq?|[lg]eq?|in)(?![A-Za-z])")
_FINAL_HEADER = re.compile(r"<\|channel\|>\s*final\s*(?:<\|constrain\|>[^<]*)?<\|message\|>")
_MESSAGE_END = re.compile(r"<\|(?:start|channel|message|end|return|call|endoftext)\|>")


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

    Raises nothing on any text. Raises `equivalence.Unavailable` if two answers need algebra and no worker
    process is available; without math-verify it is an ImportError that names the packages. Pairs of integers never
    need it.
    """
    message = final_message(response)
    if message is None:
        return Grade(False, None, NO_FINAL)
    answers, reason = extract_answers(message)
    if reason:
        return Grade(False, None, reason)
    content = answers[-1]
    if not all(_agree(other, content) for other in answers[:-1]):
        content = ", ".join(dict.fromkeys(answers))
    if len(content) > MAX_ANSWER_CHARS:
        return Grade(False, None, TOO_LONG)
    answer = canonical(content)
    if not answer:
        return Grade(False, None, NO_ANSWER)
    is_correct = _equal(content, answer, gold) and not (prompt and is_copied(content, gold, prompt))
    return Grade(is_correct, answer, None)


def final_message(response: str) -> str | None:
    """The text of the assistant's last final-channel message; the whole text if it has no harmony marker; else None.

    A message ends at the next marker or at the end of the text: a reply cut by the token limit counts.
    A marker in the text counts as the token: `grpo.rollout.response_text` breaks those that a model only spells.
    Without markers, the text before the last `</think>` is dropped. A `<think>` that is never closed gives None, and so
    does a blank text.
    """
    if not MARKER.search(response):
        thought_end = response.rfind("</think>")
        message = response if thought_end < 0 else response[thought_end + len("</think>") :]
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
    """Whether the header whose channel starts at `channel` names nobody, or the assistant without a recipient.

    A header without a name continues the assistant's message that the prompt opened. A message of another role never
    holds the answer.
    """
    before = response.rfind("<|", 0, channel)
    is_named = before >= 0 and response.startswith(_START, before)
    return not is_named or response[before + len(_START) : channel].strip() == "assistant"


def canonical(answer: str) -> str:
    r"""One spelling for equal integers: "033", "33.0", "33 cm" and "33^\circ" all give "33"; other answers spelled."""
    if digits := integer(answer.strip()[:MAX_ANSWER_CHARS]):  # most answers, at a tenth of the time
        return digits
    text = spell(answer)
    value, _ = split_unit(text)
    if "_" in value and (based := parse_in_base(squeeze(value))) and based[1] == 10:
        return integer(based[0]) or "0"
    return integer(value) or squeeze(text)


def _equal(content: str, answer: str, gold: str) -> bool:
    """Two integers decide by their digits, unless both have units."""
    if answer == gold:
        return True
    gold_digits = integer(gold)
    if answer.removeprefix("-").isdecimal():
        if gold_digits:
            return answer == gold_digits
        gold_value, gold_unit = split_unit(spell(gold))
        if gold_digits := integer(gold_value):
            return answer == gold_digits and split_unit(spell(content))[1] in ("", gold_unit)
    elif "=" in content and not _RELATION.search(gold) and (sides := split_equation(spell(content))) is not None:
        said = canonical(gold)
        if sides and all(canonical(side) == said or equal(side, gold) for side in sides):
            return True
        if gold_digits:
            return False
    return equal(content, gold)


def _agree(first: str, second: str) -> bool:
    if first == second:
        return True
    return _equal(first, canonical(first), second) or _equal(second, canonical(second), first)
