"""Reads a file of problems: JSON lines with a prompt and a label. The checks before a run and the run itself call it.

OpenRLHF's own reader splits names at commas and `@`, and guesses the types of labels: dates, floats, text.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.stack.json_files import build_object, numbered_rows
from grpo.stack.problem import UserError

Row = dict[str, Any]
_FIX = "fix the line; python -m data.prepare writes valid files"
_SHOWN = 200  # characters of a line's field names


def read_rows(path: Path, input_key: str, label_key: str | None) -> Iterator[tuple[int, Row]]:
    """Yield number, from 1, and fields of each line that is not blank.

    Raises:
        OSError: if the file cannot be read.
        UserError: at an invalid line.
    """
    for number, value in numbered_rows(path, make_object=build_object):
        yield number, _check_row(value, f"{path}, line {number}", input_key, label_key)


def normalize(text: str) -> str:
    """Return a text as it is compared with others: leaks and duplicates differ in case, white space, and Unicode form.

    Zero-width characters are left out, and full-width ones are the narrow ones; 3² stays another text than 32. Case is
    folded in the decomposed form, where no letter hides its base.
    """
    narrow = (
        unicodedata.normalize("NFKC", one) if unicodedata.decomposition(one)[:6] == "<wide>" else one for one in text
    )
    visible = "".join(one for one in narrow if unicodedata.category(one) != "Cf")
    folded = unicodedata.normalize("NFD", visible).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def _check_row(value: Any, where: str, input_key: str, label_key: str | None) -> Row:
    if isinstance(value, UnicodeDecodeError):
        raise UserError(f"{where} is not UTF-8: {value.reason}", _FIX)
    if isinstance(value, ValueError):
        raise UserError(f"{where} is not JSON: {value}", _FIX)
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object", _FIX)
    for key in (input_key, label_key):
        if key and value.get(key) in (None, "", []):
            what = f"{where}: {key!r} is missing or empty (fields: {', '.join(value)[:_SHOWN] or 'none'})"
            raise UserError(what, _FIX)
    if not (isinstance(prompt := value[input_key], str) or _is_chat(prompt)):
        raise UserError(f"{where}: {input_key!r} is neither text nor messages, each with a role and text content", _FIX)
    if not isinstance(prompt, str) and (fault := _chat_fault(prompt)):
        raise UserError(f"{where}: {input_key!r} {fault}", "correct the messages, or remove the line")
    return value


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in prompt
    )


def _chat_fault(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why gpt-oss's format has no place for a conversation; None if it has one."""
    called: list[Any] = []  # ids of tool calls
    for number, message in enumerate(messages, 1):
        roles = ("developer", "user", "assistant", "tool") if number > 1 else ("system", "developer", "user")
        if message["role"] not in roles:
            return f"has the role {message['role']!r} in message {number}, not one of {', '.join(roles)}"
        for call in message.get("tool_calls") or []:
            if not isinstance(call, dict) or not call.get("id") or not isinstance(call.get("function"), dict):
                return f"has a tool call without id or function in message {number}"
            called.append(call["id"])
        if message["role"] == "tool" and message.get("tool_call_id") not in called:
            return f"has no tool_call_id of an earlier call in message {number}"
    return "ends with the assistant, so nothing is left to answer" if messages[-1]["role"] == "assistant" else None
