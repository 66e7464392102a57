"""Messages of the verifiers package, from and to the form of the OpenAI protocol."""

import uuid
from typing import Any

from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from grpo.rollout.multi_turn.environment import Message


def from_package(message: Any) -> Message:
    """Return a message of the package in the form of the OpenAI protocol.

    Raises:
        ValueError: for content other than text.
    """
    given = message.model_dump(exclude_none=True)
    made: Message = {"role": given["role"], "content": _text(given.get("content", ""))}
    for key in ("reasoning_content", "tool_call_id"):
        if key in given:
            made[key] = given[key]
    if calls := given.get("tool_calls"):
        made["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return made


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not all(part.get("type") == "text" for part in content):
        kinds = ", ".join(sorted({str(part.get("type")) for part in content}))
        raise ValueError(f"it shows the model {kinds}, but only text is supported")
    return "".join(part["text"] for part in content)


def make_response(message: Message, is_cut: bool, created: int) -> Response:
    """Return a turn of the policy as a response of the package.

    Args:
        is_cut: whether a length limit ended it.
        created: seconds since 1970.
    """
    calls = [
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    made = ResponseMessage(
        content=message.get("content") or "",
        reasoning_content=message.get("reasoning_content"),
        tool_calls=calls or None,
        finish_reason="length" if is_cut else "tool_calls" if calls else "stop",
        is_truncated=is_cut,
    )
    return Response(id=uuid.uuid4().hex, created=created, model="policy", message=made)
