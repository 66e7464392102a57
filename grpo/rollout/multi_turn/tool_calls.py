"""Tool calls inside a text, as Qwen3 writes them: JSON between <tool_call> and </tool_call>."""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo.rollout.multi_turn.environment import Message
from grpo.rollout.multi_turn.parts import Codec, Part


def render_calls(codec: Codec, calls: Sequence[dict[str, Any]], follows_text: bool) -> list[Part]:
    """Return tool calls as Qwen3 writes them."""
    structure, parts = codec.structure, []
    for number, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        parts += structure("\n" if number or follows_text else "") + structure('<tool_call>\n{"name": "')
        parts += codec.content(name) + structure('", "arguments": ') + codec.content(arguments)
        parts += structure("}\n</tool_call>")
    return parts


_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def with_calls(text: str) -> Message:
    """Return content and tool calls of a text with calls in <tool_call>, as Qwen3 writes them."""
    blocks = _TOOL_CALL.findall(text)
    if not blocks:
        return {"content": text}
    calls = [call_of(number, _function(block.strip())) for number, block in enumerate(blocks)]
    return {"content": text[: text.index("<tool_call>")].removesuffix("\n"), "tool_calls": calls}


def _function(text: str) -> dict[str, str]:
    """Return name and arguments of a call, the arguments exactly as written."""
    try:
        read = json.loads(text)
        name, arguments = read["name"], read["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"name": "", "arguments": text}
    at = re.search(r'"arguments"\s*:\s*', text)
    written = text[at.end() : text.rindex("}")].rstrip() if at else ""
    try:
        is_whole = json.loads(written) == arguments
    except ValueError:  # the arguments are not the last field
        is_whole = False
    return {"name": str(name), "arguments": written if is_whole else json.dumps(arguments, ensure_ascii=False)}


def call_of(number: int, function: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": function}
