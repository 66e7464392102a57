"""The format of gpt-oss.

openai-harmony renders messages to tokens and parses tokens to messages. Here sampled tokens must stay as they are, next
to rendered ones, so its renderer does not fit.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo.rollout.multi_turn.environment import Message
from grpo.rollout.multi_turn.parts import Part
from grpo.rollout.multi_turn.template import Template, text_of
from grpo.rollout.multi_turn.tool_calls import call_of
from grpo.stack.problem import UserError


class HarmonyTemplate(Template):
    """The format of gpt-oss: messages with channels, a tool call at the end of a turn, <|return|> after an answer.

    It follows the chat template of gpt-oss. A message that ends with <|return|> ends with <|end|> in a later prompt.
    The thinking of an answered question is left out. A tool's answer is JSON.
    """

    stops = ("<|return|>", "<|call|>", "<|endoftext|>")

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        answers = [i for i, message in enumerate(messages) if _is_answer(message)]
        last_answer, names = (answers[-1] if answers else -1), _call_names(messages)
        parts: list[Part] = []
        for i, message in enumerate(messages[first:], first):
            content, role = text_of(message), message["role"]
            if role == "assistant":
                parts += self._assistant(message, content, is_thinking_kept=i > last_answer)
            elif role == "tool":
                name = message.get("name") or names.get(message.get("tool_call_id"), "")
                said = json.dumps(content, ensure_ascii=False)
                parts += self._message(f"functions.{name} to=assistant<|channel|>commentary", said)
            elif role in ("user", "developer"):
                parts += self._message(role, content)
            else:
                raise UserError(
                    f"message {i}: harmony has no role {role} after the first turn", "use user, developer and tool"
                )
        return parts + self.codec.structure("<|start|>assistant")

    def _assistant(self, message: Message, content: str, is_thinking_kept: bool) -> list[Part]:
        calls, parts = message.get("tool_calls") or [], []
        thinking = message.get("reasoning_content")
        if calls and thinking and is_thinking_kept:
            parts += self._message("assistant<|channel|>analysis", thinking)
        if not calls:
            return self._message("assistant<|channel|>final", content)
        if content:
            parts += self._message("assistant<|channel|>commentary", content)
        for call in calls:
            name = call["function"]["name"]
            header = call.get("header", "")
            if _recipient(header) != name:
                header = f" to=functions.{name}<|channel|>commentary json"
            parts += self._message(f"assistant{header}", call["function"]["arguments"], "<|call|>")
        return parts

    def _message(self, header: str, content: str, end: str = "<|end|>") -> list[Part]:
        structure = self.codec.structure
        return [*structure(f"<|start|>{header}<|message|>"), *self.codec.content(content), *structure(end)]

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        said: dict[str, list[str]] = {"analysis": [], "final": [], "commentary": []}
        calls: list[dict[str, Any]] = []
        for header, body in self._messages(self._body(tokens)):
            channel = re.search(r"<\|channel\|>(\w+)", header)
            if name := _recipient(header):
                function = {"name": name, "arguments": body}
                calls.append(call_of(len(calls), function) | {"header": header.removeprefix("assistant")})
            else:
                said.get(channel[1] if channel else "", said["commentary"]).append(body)
        message: Message = {"role": "assistant", "content": "".join(said["final"] or said["commentary"])}
        if said["analysis"]:
            message["reasoning_content"] = "\n".join(said["analysis"])
        return message | ({"tool_calls": calls} if calls else {})

    def _messages(self, tokens: Sequence[int]) -> list[tuple[str, str]]:
        """Return header and body of each message of a turn; a header without <|message|> has an empty body."""
        names = {name: self.codec.added[name] for name in ("<|start|>", "<|message|>", "<|end|>")}
        messages: list[tuple[str, str]] = []
        header: list[int] = []
        body: list[int] | None = None
        for token in [*tokens, names["<|start|>"]]:
            if token == names["<|start|>"]:
                if header or body is not None:
                    messages.append((self.codec.decode(header), self.codec.decode(body or [])))
                header, body = [], None
            elif token == names["<|message|>"] and body is None:
                body = []
            elif token != names["<|end|>"]:
                (header if body is None else body).append(token)
        return messages


def _recipient(header: str) -> str:
    """Return the tool that a harmony header addresses; "" if it addresses none."""
    address = re.search(r"\bto=([^\s<]+)", header)
    return address[1].removeprefix("functions.") if address else ""


def _call_names(messages: Sequence[Message]) -> dict[Any, str]:
    """Return the name of the tool of each call, by its id."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or []}


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")
