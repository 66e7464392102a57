"""The format of gpt-oss: renders a history to tokens, and reads the turn that was sampled.

Prompts look as openai-harmony and vLLM serve them. The model's own chat template renders the first message with the
system text and the tools; this module renders the rest. Messages are the OpenAI protocol's; an assistant's thinking is
in ``reasoning_content``.

openai-harmony itself would encode sampled tokens again, which must stay as they are. The tests compare the two.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from grpo.environments.environment import Message
from grpo.rollout.chat_template import arguments
from grpo.rollout.response_text import Codec
from grpo.rollout.trajectory import Origin
from grpo.stack.problem import UserError
from grpo.stack.upstream import FastTokenizer, Tokenizer

SAMPLED = "sampled"  # of a message: the tokens of its turn
_HARMONY = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"}
_STOPS = ("<|return|>", "<|call|>", "<|endoftext|>")  # tokens that end a turn
_ROLES = ("user", "assistant", "system", "developer")  # a message to one of them is not a tool call
_CONTENT = "\ue000"  # stands for the first message while the chat template renders it

Piece = tuple[list[int], Origin]


def is_harmony(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is gpt-oss's, by its special tokens."""
    return tokenizer.get_added_vocab().keys() >= _HARMONY


def renderer(tokenizer: Tokenizer, variables: Mapping[str, Any]) -> Callable[[str | Sequence[Message]], list[int]]:
    """Return a function that renders a prompt to tokens, up to the beginning of the assistant's turn.

    A prompt is the user's message, or a list of messages. A model other than gpt-oss, which is only evaluated, has its
    own chat template.

    Args:
        variables: see :func:`grpo.rollout.chat_template.variables`.

    Raises:
        UserError: when called, for messages that do not fit.
    """

    def parse(prompt: str | Sequence[Message]) -> Sequence[Message]:
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt

    if not is_harmony(tokenizer):
        options = {"add_generation_prompt": True, "return_dict": False, **arguments(variables)}
        return lambda prompt: tokenizer.apply_chat_template(parse(prompt), **options)
    template = template_for(tokenizer, variables)
    return lambda prompt: template.render_tokens(parse(prompt))


def template_for(tokenizer: Tokenizer, variables: Mapping[str, Any] | None = None) -> "Template":
    """Return the format for gpt-oss's tokenizer.

    Raises:
        UserError: for another model's tokenizer, or one without a fast backend.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("prompts need a fast tokenizer", "leave out --disable_fast_tokenizer")
    if not is_harmony(tokenizer):
        raise UserError("the tokenizer is not gpt-oss's, so its model cannot act in an environment", "use gpt-oss")
    return Template(cast(FastTokenizer, tokenizer), variables or {})


@dataclass(frozen=True)
class Spoken:
    """A message of a history: its tokens, and its channel and the tool that it calls, or ""."""

    pieces: list[Piece]
    channel: str
    tool: str


class Template:
    """Renders histories, and reads turns.

    A turn stays as it was sampled, but for the <|return|> at its end, which is <|end|> in a later prompt. What was
    thought before the last answer is left out: analysis, and the calls of built-in tools there with their results.

    Attributes:
        stop_ids: the ids of the tokens that end a turn.
    """

    def __init__(self, tokenizer: FastTokenizer, variables: Mapping[str, Any]) -> None:
        self.codec, self._variables = Codec(tokenizer), variables
        self._added = self.codec.added
        self.stop_ids = [self._added[stop] for stop in _STOPS if stop in self._added]
        self._begin_turn: Piece = (self.codec.encode("<|start|>assistant"), Origin.TEMPLATE)
        self._read = functools.lru_cache(256)(self._read_turn)  # each prompt compares all earlier turns

    def render_tokens(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Return the tokens of :meth:`render`."""
        return [token for tokens, _ in self.render(messages, tools) for token in tokens]

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[Piece]:
        """Return the whole history, and the beginning of the assistant's turn after it.

        Raises:
            UserError: for messages that do not fit.
        """
        first, last = messages[0]["role"], messages[-1]["role"]
        if first not in ("system", "developer", "user") or last == "assistant":
            raise UserError(f"messages from {first} to {last} leave nothing to answer", "begin and end with the user")
        return [(self._head(messages[0], tools), Origin.TEMPLATE), *self.tail(messages[1:])]

    def _head(self, message: Message, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the system text, the tools, and the first message, rendered by the model's own chat template."""
        content = get_text(message)
        place = content and _CONTENT  # what the content spells must not become a special token
        declared = [tool["name"] for tool in tools if tool["type"] == "builtin"]
        built_in = list(dict.fromkeys([*self._variables.get("builtin_tools", ()), *declared]))
        text = self.codec.tokenizer.apply_chat_template(
            [{"role": message["role"], "content": place}],
            tokenize=False,
            add_generation_prompt=False,
            tools=[tool for tool in tools if tool["type"] != "builtin"] or None,
            **arguments(self._variables) | ({"builtin_tools": built_in} if built_in else {}),
        )
        tokens: list[int] = []
        for run, special in self.codec.split(text):
            if run == f"# Instructions\n\n{place}\n\n":  # vLLM serves no empty line before missing tools
                run = run.removesuffix("\n\n")
            tokens += [special] if special is not None else self.codec.encode_text(run.replace(_CONTENT, content))
        return tokens

    def tail(self, messages: Sequence[Message]) -> list[Piece]:
        """Return the messages after the head, and the beginning of the assistant's turn."""
        history: list[Spoken] = []
        calls: dict[Any, Spoken] = {}
        for message in messages:
            role = message["role"]
            if role == "assistant":
                turn = self._turn(message)
                history += turn
                ids = (call["id"] for call in message.get("tool_calls") or [])
                calls |= dict(zip(ids, (each for each in turn if each.tool), strict=True))
            elif role == "tool":
                history.append(self._result(message, calls.get(message.get("tool_call_id"))))
            elif role in ("user", "developer"):
                heading = "# Instructions\n\n" if role == "developer" else ""
                history.append(self._message(role, "", heading + get_text(message)))
            else:
                raise UserError(
                    f"harmony has no role {role} after the first message", "use user, developer, assistant and tool"
                )
        answer = max((i for i, each in enumerate(history) if each.channel == "final"), default=-1)
        rendered: list[Piece] = []  # without what was thought before the last answer; calls of functions stay
        for i, each in enumerate(history):
            is_thought = each.channel == "analysis" and (not each.tool or _is_built_in(each.tool))
            if i > answer or not is_thought:
                rendered += each.pieces
        return [*rendered, self._begin_turn]

    def _message(self, author: str, channel: str, content: str, end: str = "<|end|>") -> Spoken:
        """Return a message; author and channel may also name a recipient and the content's type."""
        text, added = self.codec.encode_text, self._added
        header = [added["<|start|>"], *text(author), *([added["<|channel|>"], *text(channel)] if channel else [])]
        pieces = [
            ([*header, added["<|message|>"]], Origin.TEMPLATE),
            (text(content), Origin.ENVIRONMENT),
            ([added[end]], Origin.TEMPLATE),
        ]
        return Spoken(pieces, channel.partition(" ")[0], _tool(f"{author} {channel}"))

    def _result(self, message: Message, call: Spoken | None) -> Spoken:
        """Return a tool's result, in the name of the tool that was called."""
        name = call.tool if call else str(message.get("name") or "")
        author, channel = f"functions.{name.removeprefix('functions.')}", "commentary"
        if _is_built_in(name):
            author, channel = name, (call.channel if call else "") or "analysis"
        return self._message(f"{author} to=assistant", channel, get_text(message))

    def _turn(self, message: Message) -> list[Spoken]:
        """Return the model's messages of a turn: as sampled, or from its fields if they were written or edited."""
        sampled = message.get(SAMPLED)
        if sampled and _fields(self._read(tuple(sampled))) == _fields(message):
            return self._sampled(sampled)
        turn, calls, content = [], message.get("tool_calls") or [], get_text(message)
        if thinking := message.get("reasoning_content"):
            turn.append(self._message("assistant", "analysis", thinking))
        if content or not calls:
            turn.append(self._message("assistant", "commentary" if calls else "final", content))
        return turn + [self._call(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def _call(self, name: str, arguments: str) -> Spoken:
        if _is_built_in(name):
            body = _code(arguments) if name == "python" else arguments
            return self._message("assistant", f"analysis to={name} code", body, "<|call|>")
        return self._message(f"assistant to=functions.{name}", "commentary json", arguments, "<|call|>")

    def _sampled(self, tokens: Sequence[int]) -> list[Spoken]:
        """Return a turn's messages as they were sampled. Only what ended the turn may differ in a later prompt."""
        messages = self._split(tokens)
        headers = [self._header_and_body(message)[0] for message in messages]
        last, stays = messages[-1], (self._added["<|call|>"], self._added["<|end|>"])
        if last and last[-1] in self.stop_ids and last[-1] not in stays:
            del last[-1]
        if not last or last[-1] not in stays:
            last.append(self._added["<|call|>" if _tool(headers[-1]) else "<|end|>"])
        messages[0][:0] = self._begin_turn[0]  # the prompt of the turn ended with it
        return [
            Spoken([(message, Origin.TEMPLATE)], _channel(header), _tool(header))
            for message, header in zip(messages, headers, strict=True)
        ]

    def _split(self, tokens: Sequence[int]) -> list[list[int]]:
        """Return the messages of a turn; the first lacks its <|start|>assistant, which ended the prompt."""
        messages: list[list[int]] = [[]]
        for token in tokens:
            if token == self._added["<|start|>"]:
                messages.append([])
            messages[-1].append(token)
        return messages

    def _header_and_body(self, message: Sequence[int]) -> tuple[str, str]:
        """Return what stands before and after the <|message|> of a message; without one, all is header."""
        outside = {*self.stop_ids, self._added["<|start|>"], self._added["<|end|>"]}
        inner = [token for token in message if token not in outside]
        mark = self._added["<|message|>"]
        at = inner.index(mark) if mark in inner else len(inner)
        return self.codec.decode(inner[:at]), self.codec.decode(inner[at + 1 :])

    def parse(self, tokens: Sequence[int]) -> Message:
        """Return the assistant's message for a turn's sampled tokens, whole or cut. Never raises."""
        return self._read_turn(tokens) | {SAMPLED: list(tokens)}

    def _read_turn(self, tokens: Sequence[int]) -> Message:
        said: dict[str, list[str]] = {"analysis": [], "final": [], "commentary": []}
        calls: list[dict[str, Any]] = []
        for header, body in map(self._header_and_body, self._split(tokens)):
            if tool := _tool(header):
                arguments = json.dumps({"code": body}, ensure_ascii=False) if tool == "python" else body
                function = {"name": tool.removeprefix("functions."), "arguments": arguments}
                calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
            elif header or body:
                said.get(_channel(header), said["commentary"]).append(body)
        channel = "final" if said["final"] else "commentary"
        content = said["final"][-1] if said["final"] else "".join(said["commentary"])
        message: Message = {"role": "assistant", "channel": channel, "content": content}
        if said["analysis"]:
            message["reasoning_content"] = "\n".join(said["analysis"])
        return message | ({"tool_calls": calls} if calls else {})


def get_text(message: Message) -> str:
    """Return the content of a message; "" if it has none. Raises UserError for content other than text."""
    content = message.get("content")
    if not isinstance(content, str | None):
        raise UserError(f"the content of a {message['role']} message is not text", "give one string")
    return content or ""


def _channel(header: str) -> str:
    channel = re.search(r"<\|channel\|>(\w+)", header)
    return channel[1] if channel else ""


def _tool(header: str) -> str:
    """Return the tool that a header addresses; "" if it has no recipient, or the recipient is a role."""
    address = re.search(r"\bto=([^\s<]+)", header)
    return address[1] if address and address[1] not in _ROLES else ""


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
