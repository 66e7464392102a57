"""The format of gpt-oss.

openai-harmony renders messages to tokens and parses tokens to messages. Here sampled tokens must stay as they are, next
to rendered ones, so its renderer does not fit. The tests compare the two.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from grpo.rollout.multi_turn.environment import Message
from grpo.rollout.multi_turn.parts import Part
from grpo.rollout.multi_turn.template import Template, get_text, make_call
from grpo.stack.problem import UserError
from grpo.stack.upstream.tokenizer import FastTokenizer

SAMPLED = "sampled"  # of a message: its turn's text and special tokens, alternately; the first and the last are text
_BOUNDS = {"<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"}  # of messages


@dataclass(frozen=True)
class Spoken:
    """A message of a history in harmony.

    Attributes:
        parts: the whole message.
        channel: "" if it has none.
        recipient: whom it addresses: a tool, or, for a tool's answer, "assistant"; "" if it addresses nobody.
        is_thought: whether it is left out once an answer follows.
    """

    parts: list[Part]
    channel: str = ""
    recipient: str = ""
    is_thought: bool = False


class HarmonyTemplate(Template):
    """The format of gpt-oss: messages with channels, a tool call at the end of a turn, <|return|> after an answer.

    It renders history as openai-harmony and vLLM do, which serve the model. The chat template of gpt-oss renders the
    same, except that it writes tools' answers as JSON strings, and an empty line after instructions without tools.

    A turn stays as it was sampled, but for the <|return|> at its end, which is <|end|> in a later prompt. What was
    thought before the last answer is left out: analysis, and the calls of built-in tools there with their answers.

    Args:
        tokenizer, variables: see :class:`Template`.
        follows_hub: whether it follows the chat template in these.
    """

    stops = ("<|return|>", "<|call|>", "<|endoftext|>")

    def __init__(
        self, tokenizer: FastTokenizer, variables: dict[str, Any] | None = None, follows_hub: bool = False
    ) -> None:
        super().__init__(tokenizer, variables)
        self._follows_hub = follows_hub

    def head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        """See :meth:`Template.head`."""
        parts = super().head(messages, tools)
        instructions = get_text(messages[0]) if messages and messages[0]["role"] in ("system", "developer") else ""
        if self._follows_hub or not instructions:
            return parts
        added = f"# Instructions\n\n{instructions}\n\n"
        return [replace(part, text=part.text[:-2]) if part.text == added else part for part in parts]

    def describe(self, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """See :meth:`Template.describe`."""
        named = [tool["name"] for tool in tools if tool["type"] == "builtin"]
        names = dict.fromkeys([*self._variables.get("builtin_tools", ()), *named])
        functions = [tool for tool in tools if tool["type"] != "builtin"]
        return {"tools": functions or None} | ({"builtin_tools": list(names)} if names else {})

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        history: list[Spoken] = []
        calls: dict[Any, Spoken] = {}
        for i, message in enumerate(messages[first:], first):
            role = message["role"]
            if role == "assistant":
                turn = self._turn(message)
                history += turn
                called = (call["id"] for call in message.get("tool_calls") or [])
                calls |= dict(zip(called, (each for each in turn if each.recipient), strict=True))
            elif role == "tool":
                history.append(self._result(message, calls.get(message.get("tool_call_id"))))
            elif role in ("user", "developer"):
                history.append(self._make_message(role, get_text(message)))
            else:
                raise UserError(
                    f"message {i}: harmony has no role {role} after the first turn", "use user, developer and tool"
                )
        answer = max((i for i, each in enumerate(history) if each.channel == "final"), default=-1)
        kept = [each for i, each in enumerate(history) if i > answer or not each.is_thought]
        return [part for each in kept for part in each.parts] + self.codec.structure("<|start|>assistant")

    def _turn(self, message: Message) -> list[Spoken]:
        """Return the model's messages of a turn: as sampled, or from its fields if they were written or edited."""
        sampled = message.get(SAMPLED)
        if sampled and _fields(_read(sampled)) == _fields(message):
            return self._parse_sampled(sampled)
        turn, calls = [], message.get("tool_calls") or []
        if thinking := message.get("reasoning_content"):
            turn.append(self._make_message("assistant<|channel|>analysis", thinking))
        content = get_text(message)
        if not calls:
            return [*turn, self._make_message("assistant<|channel|>final", content)]
        if content:
            turn.append(self._make_message("assistant<|channel|>commentary", content))
        return turn + [self._call(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def _call(self, name: str, arguments: str) -> Spoken:
        self._check_name(name)
        if not _is_built_in(name):
            return self._make_message(f"assistant to=functions.{name}<|channel|>commentary json", arguments, "<|call|>")
        body = _code(arguments) if name == "python" else arguments
        return self._make_message(f"assistant<|channel|>analysis to={name} code", body, "<|call|>")

    def _result(self, message: Message, call: Spoken | None) -> Spoken:
        """Return a tool's answer, in the name of the tool that was called."""
        name = call.recipient.removeprefix("functions.") if call else message.get("name") or ""
        self._check_name(name)
        author, channel = f"functions.{name}", "commentary"
        if _is_built_in(call.recipient if call else name):
            author, channel = name, (call.channel if call else "") or "analysis"
        said = get_text(message)
        said = json.dumps(said, ensure_ascii=False) if self._follows_hub else said
        return self._make_message(f"{author} to=assistant<|channel|>{channel}", said)

    def _check_name(self, name: str) -> None:
        """Refuse a name with a special token, which would end the header. The model cannot write one."""
        if self.codec.pattern.search(name):
            raise UserError(f"the name of a tool is {name!r}", "use a name without special tokens")

    def _make_message(self, header: str, content: str, end: str = "<|end|>") -> Spoken:
        structure = self.codec.structure
        parts = [*structure(f"<|start|>{header}<|message|>"), *self.codec.content(content), *structure(end)]
        return _make_spoken(parts, header)

    def _parse_sampled(self, sampled: Sequence[str]) -> list[Spoken]:
        """Return a turn's messages as they were sampled. Only what ended the turn may differ in a later prompt."""
        turn = [_make_spoken(self._parts(each), _header_and_body(each)[0]) for each in _messages(sampled)]
        turn[0].parts[:0] = self.codec.structure("<|start|>assistant")
        last, added = turn[-1].parts, self.codec.added
        if last[-1].token in (added["<|return|>"], added.get("<|endoftext|>", -1)):
            del last[-1]
        if last[-1].token not in (added["<|call|>"], added["<|end|>"]):
            last += self.codec.structure("<|call|>" if turn[-1].recipient else "<|end|>")
        return turn

    def _parts(self, said: Sequence[str]) -> list[Part]:
        """Return text and special tokens, which alternate, as parts."""
        parts: list[Part] = []
        for i, text in enumerate(said):
            parts += self.codec.structure(text) if i % 2 else self.codec.content(text)
        return parts

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        sampled = [""]
        for unit in self.codec.units(tokens):
            if unit.token is None:
                sampled[-1] = unit.text
            else:
                sampled += [unit.text, ""]
        return _read(sampled) | {SAMPLED: sampled}


def _read(sampled: Sequence[str]) -> Message:
    """Return the fields of a turn's message."""
    said: dict[str, list[str]] = {"analysis": [], "final": [], "commentary": []}
    calls: list[dict[str, Any]] = []
    for header, body in map(_header_and_body, _messages(sampled)):
        if recipient := _recipient(header):
            name = recipient.removeprefix("functions.")
            arguments = json.dumps({"code": body}, ensure_ascii=False) if recipient == "python" else body
            calls.append(make_call(len(calls), {"name": name, "arguments": arguments}))
        elif header or body:
            said.get(_channel(header), said["commentary"]).append(body)
    message: Message = {"role": "assistant", "content": "".join(said["final"] or said["commentary"])}
    if said["analysis"]:
        message["reasoning_content"] = "\n".join(said["analysis"])
    return message | ({"tool_calls": calls} if calls else {})


def _messages(sampled: Sequence[str]) -> list[Sequence[str]]:
    """Return the messages of a turn, each as text and special tokens, alternately."""
    begins = [i for i in range(1, len(sampled), 2) if sampled[i] == "<|start|>"]
    spans = pairwise([*begins, len(sampled)])
    return [sampled[: begins[0] if begins else None], *(["", *sampled[begin:end]] for begin, end in spans)]


def _header_and_body(message: Sequence[str]) -> tuple[str, str]:
    """Return what stands before and after the <|message|> of a message; without one, all is header."""
    is_bound = [i % 2 == 1 and text in _BOUNDS for i, text in enumerate(message)]
    mark = next((i for i, text in enumerate(message) if i % 2 and text == "<|message|>"), len(message))
    texts = ["" if bound else text for bound, text in zip(is_bound, message, strict=True)]
    return "".join(texts[:mark]), "".join(texts[mark + 1 :])


def _make_spoken(parts: list[Part], header: str) -> Spoken:
    channel, recipient = _channel(header), _recipient(header)
    is_thought = channel == "analysis" and (recipient in ("", "assistant") or _is_built_in(recipient))
    return Spoken(parts, channel, recipient, is_thought)


def _channel(header: str) -> str:
    channel = re.search(r"<\|channel\|>(\w+)", header)
    return channel[1] if channel else ""


def _recipient(header: str) -> str:
    """Return whom a header addresses; "" if it addresses nobody."""
    address = re.search(r"\bto=([^\s<]+)", header)
    return address[1] if address else ""


def _is_built_in(name: str) -> bool:
    return name == "python" or name.startswith("browser.")


def _code(arguments: str) -> str:
    """Return the code in the arguments of a call; the arguments themselves if they have another form."""
    try:
        code = json.loads(arguments)["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return code if isinstance(code, str) else arguments


def _fields(message: Message) -> tuple[Any, ...]:
    """Return what an environment sees of the model's message."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return message.get("content") or "", message.get("reasoning_content") or "", functions
