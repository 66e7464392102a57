r"""Reads answers: the text of a column's value, and whether the grader can compare it with other spellings.

With a reward of the user's own (`is_graded` false), an answer is any text, or the JSON of a list or an object.
"""

import json
import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from reward.answers import extract_boxed
from reward.comparison import is_readable
from reward.notation import MAX_ANSWER_CHARS, spell

_EXACT = 2**53  # up to here a float is the integer that was written
# Dates and telephone numbers, which the grader could read as a difference or a quotient.
_GROUPS = re.compile(r"\d+(?:[-\u2010-\u2013]\d+)+|\d+(?:/\d+){2,}")
# Placeholders for a missing answer. The grader would read these, and words of up to three letters, as products.
_MISSING = re.compile(r"n ?/ ?a\.?|n\. ?a\.?|(?:np\.)?nan\.?|nil|null|tb[ad]|<na>")
_WRAPPED = re.compile(r"\$(.+)\$|\\(?:text|mathrm) ?\{([^{}]+)\}")
_WORDS = {"yes", "no", "one", "two", "six", "ten", "inf", "dne", "see", "all", "any"}


def read_answer(value: Any, column: str, after: str | None = None, is_graded: bool = True) -> str:
    """Return the answer of a row as text; `after` is what precedes it in the column. Raises ValueError with the fault.

    The value is a scalar, a list of one, or a label that `data.prepare` has written.
    """
    value = _open_label(value)
    if is_graded and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or value != value:  # pandas writes NaN for no value
        raise ValueError(f"has no answer in its column {column!r}")
    try:
        is_json = not is_graded and isinstance(value, dict | list)
        text = json.dumps(value, ensure_ascii=False, default=to_text) if is_json else to_text(value)
    except TypeError as error:
        raise ValueError(f"has in its column {column!r} {error}") from error
    if after:
        _before, marker, text = text.rpartition(after)
        if not marker:
            raise ValueError(f"has no {after!r} in its column {column!r}")
        text = text.strip()
    if not text.strip():
        raise ValueError(f"has no answer in its column {column!r}")
    return _check_gold(text.strip()) if is_graded else text


def to_text(value: Any) -> str:
    """Return a scalar as a person would write it. Raises TypeError, with its type and value, for anything else."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case float() if abs(value) > _EXACT:
            raise TypeError(f"the float {value!r}, which is rounded: write the answer's digits as a text")
        case float() | Decimal():
            text = f"{Decimal(repr(value)) if isinstance(value, float) else value:f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        case datetime():
            return str(value).removesuffix(" 00:00:00")
        case int() | date() | time() | timedelta():
            return str(value)
    raise TypeError(f"a value of the type {type(value).__name__}, which is no answer: {value!r:.80}")


def _open_label(value: Any) -> Any:
    """Return the answer of a label in JSON; anything else unchanged."""
    fields = value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # an answer may start with a brace: {1,2}
            fields = json.loads(value)
    match fields:
        case {"answer": answer, **others} if others.keys() <= {"split"}:
            return answer
    return value


def _check_gold(text: str) -> str:
    """Return the gold answer in a text: its last box, or all of it."""
    if "\\boxed" in text or "\\fbox" in text:
        boxed, reason = extract_boxed(text)
        if reason:
            raise ValueError(f"has no answer in its boxes: {reason}")
        text = ", ".join(dict.fromkeys(boxed))
    if not is_gold(text):
        raise ValueError(f"has an answer that the grader cannot read: {text[:80]!r}")
    return text


def _is_missing(answer: str) -> bool:
    while match := _WRAPPED.fullmatch(answer := answer.strip()):
        answer = match[1] or match[2]
    return answer == "NA" or bool(_MISSING.fullmatch(answer.lower()))


def is_gold(answer: str) -> bool:
    """Say whether the grader understands an answer, and so accepts other spellings of it. It compares nothing."""
    if len(answer) > MAX_ANSWER_CHARS or answer.lower() in _WORDS or _GROUPS.fullmatch(answer) or _is_missing(answer):
        return False
    return is_readable(spell(answer))
