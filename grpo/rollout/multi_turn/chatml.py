"""Formats in which a turn is one text: Qwen3's, and a plain one for models without a format.

In both, tool calls are JSON between <tool_call> and </tool_call>.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from grpo.rollout.multi_turn.environment import Message, list_functions
from grpo.rollout.multi_turn.parts import Codec, Part
from grpo.rollout.multi_turn.template import Template, get_text, make_call
from grpo.stack.problem import UserError
from grpo.stack.upstream.tokenizer import FastTokenizer

_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class Qwen3(Template):
    """The format of Qwen3: a newline after each <|im_end|>; thinking before the last question is left out."""

    stops = ("<|im_end|>", "<|endoftext|>")

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        structure, inside = self.codec.structure, self.codec.content
        questions = [i for i, message in enumerate(messages) if message["role"] == "user" and not _is_response(message)]
        last_question = questions[-1] if questions else len(messages) - 1
        parts: list[Part] = []
        for i, message in enumerate(messages[first:], first):
            content, role = get_text(message), message["role"]
            if role == "assistant":
                thinking = message.get("reasoning_content") or ""
                parts += structure("<|im_start|>assistant\n")
                if i > last_question and (thinking or i == len(messages) - 1):
                    parts += structure("<think>\n") + inside(thinking.strip("\n")) + structure("\n</think>\n\n")
                    content = content.lstrip("\n")
                parts += inside(content) + _render_calls(self.codec, message.get("tool_calls") or [], bool(content))
                parts += structure("<|im_end|>\n")
            elif role == "tool":
                if messages[i - 1]["role"] != "tool":
                    parts += structure("<|im_start|>user")
                parts += structure("\n<tool_response>\n") + inside(content) + structure("\n</tool_response>")
                if i == len(messages) - 1 or messages[i + 1]["role"] != "tool":
                    parts += structure("<|im_end|>\n")
            elif role in ("user", "system"):
                parts += structure(f"<|im_start|>{role}\n") + inside(content) + structure("<|im_end|>\n")
            else:
                raise UserError(
                    f"message {i}: Qwen3's format has no role {role}", "use system, user, assistant and tool"
                )
        return parts + structure("<|im_start|>assistant\n")

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        text = self.codec.decode(self._body(tokens))
        before, is_thought, after = text.partition("</think>")
        message: Message = {"role": "assistant"}
        if is_thought:
            message["reasoning_content"] = before.rpartition("<think>")[2].strip("\n")
            text = after.lstrip("\n")
        return message | _parse_calls(text)


class Plain(Template):
    """A format for models without one: each message under its role in brackets, an end token after each turn."""

    def __init__(self, tokenizer: FastTokenizer, variables: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer, variables)
        assert tokenizer.eos_token  # template_for has checked it
        self.stops = (tokenizer.eos_token,)

    def head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        """Return the tools, one per line, and the messages before the first turn."""
        listed = "".join(json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in list_functions(tools))
        begin = self.codec.structure(f"[tools]\n{listed}\n") if tools else []
        return begin + [part for message in messages for part in self._message(message)]

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        parts = [part for message in messages[first:] for part in self._message(message)]
        return parts + self.codec.structure("[assistant]\n")

    def _message(self, message: Message) -> list[Part]:
        structure, inside = self.codec.structure, self.codec.content
        content, calls = get_text(message), message.get("tool_calls") or []
        if message["role"] != "assistant":
            return structure(f"[{message['role']}]\n") + inside(content) + structure("\n\n")
        parts = structure("[assistant]\n") + inside(content)
        return parts + _render_calls(self.codec, calls, bool(content)) + structure(f"{self.stops[0]}\n\n")

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        return {"role": "assistant"} | _parse_calls(self.codec.decode(self._body(tokens)))


def _is_response(message: Message) -> bool:
    content = get_text(message)
    return content.startswith("<tool_response>") and content.endswith("</tool_response>")


def _render_calls(codec: Codec, calls: Sequence[dict[str, Any]], follows_text: bool) -> list[Part]:
    structure, parts = codec.structure, []
    for number, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        parts += structure("\n" if number or follows_text else "") + structure('<tool_call>\n{"name": "')
        parts += codec.content(name) + structure('", "arguments": ') + codec.content(arguments)
        parts += structure("}\n</tool_call>")
    return parts


def _parse_calls(text: str) -> Message:
    """Return content and tool calls of a text."""
    blocks = _TOOL_CALL.findall(text)
    if not blocks:
        return {"content": text}
    calls = [make_call(number, _function(block.strip())) for number, block in enumerate(blocks)]
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
