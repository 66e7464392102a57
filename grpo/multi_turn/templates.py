"""Renders of histories and readings of turns: what OpenAI messages are in a model's tokens, and back.

What comes before the first turn (system text, tools, the first question) is rendered by the model's own chat template;
what follows, by one of the dialects here, which say the same as the template of the model and keep what it would lose:
the order of the header that the model wrote, and the arguments of a tool call as they were written.

Messages are the OpenAI protocol's; an assistant's thinking is in ``reasoning_content``.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from grpo.multi_turn.environment import Message
from grpo.multi_turn.parts import Codec, Part


class TemplateError(ValueError):
    """A history that the template cannot hold."""


class Template(ABC):
    """One model's format.

    Args:
        tokenizer: a fast tokenizer of transformers, with its chat template.
        variables: more for the chat template, such as ``reasoning_effort``.
    """

    stops: Sequence[str]  # special tokens that end a turn

    def __init__(self, tokenizer: Any, variables: dict[str, Any] | None = None) -> None:
        self.codec = Codec(tokenizer)
        self._variables = variables or {}
        self._heads: dict[str, list[Part]] = {}

    @property
    def stop_ids(self) -> list[int]:
        """Return the ids of the tokens that end a turn."""
        return [self.codec.added[stop] for stop in self.stops if stop in self.codec.added]

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[Part]:
        """Return the whole history, and the beginning of the assistant's turn after it.

        Raises:
            TemplateError: for a message that has no place.
        """
        first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        return self._head(messages[:first], tools) + self.tail(messages, first)

    def _head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        # Rendered once: a template that asks for today's date would change the history at midnight.
        key = json.dumps([messages, tools], sort_keys=True)
        if key not in self._heads:
            self._heads[key] = self.head(messages, tools)
        return self._heads[key]

    def head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        """Return the messages before the first turn, by the model's own chat template."""
        # Names of special tokens in messages travel through the template in disguise.
        names = [*sorted(self.codec.added, key=len, reverse=True), "\ue000"]
        pattern = re.compile("|".join(map(re.escape, names)))
        disguised = [_map(message, lambda text: pattern.sub(lambda m: f"\ue000{names.index(m[0])}\ue001", text))
                     for message in messages]  # fmt: skip
        text = self.codec.tokenizer.apply_chat_template(
            disguised, tools=list(tools) or None, tokenize=False, add_generation_prompt=False, **self._variables
        )
        return [
            part if part.token is not None else self.codec.content(_undisguised(part.text, names))[0]
            for part in self.codec.structure(text)
        ]

    @abstractmethod
    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """Return messages from `first` on, and the beginning of the assistant's turn."""

    @abstractmethod
    def parse(self, tokens: Sequence[int]) -> Message:
        """Return the assistant's message that a turn's sampled tokens are, whole or cut. Never raises."""

    def _body(self, tokens: Sequence[int]) -> list[int]:
        """Return a turn without the token that ended it."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens)


class Harmony(Template):
    """The format of gpt-oss: messages with channels, a tool call at the end of a turn, <|return|> after an answer.

    As in the chat template of gpt-oss: what ends with <|return|> ends with <|end|> in a later prompt; the thinking of
    an answered question is left out; what a tool says is JSON.
    """

    stops = ("<|return|>", "<|call|>", "<|endoftext|>")

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        answers = [i for i, message in enumerate(messages) if _is_answer(message)]
        last_answer, names = (answers[-1] if answers else -1), _call_names(messages)
        parts: list[Part] = []
        for i, message in enumerate(messages[first:], first):
            content, role = _text(message), message["role"]
            if role == "assistant":
                parts += self._assistant(message, content, is_thinking_kept=i > last_answer)
            elif role == "tool":
                name = message.get("name") or names.get(message.get("tool_call_id"), "")
                said = json.dumps(content, ensure_ascii=False)
                parts += self._message(f"functions.{name} to=assistant<|channel|>commentary", said)
            elif role in ("user", "developer"):
                parts += self._message(role, content)
            else:
                raise TemplateError(f"message {i}: a {role} message has no place after the first turn in harmony")
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
                calls.append(_call(len(calls), function) | {"header": header.removeprefix("assistant")})
            else:
                said.get(channel[1] if channel else "", said["commentary"]).append(body)
        message: Message = {"role": "assistant", "content": "".join(said["final"] or said["commentary"])}
        if said["analysis"]:
            message["reasoning_content"] = "\n".join(said["analysis"])
        return message | ({"tool_calls": calls} if calls else {})

    def _messages(self, tokens: Sequence[int]) -> list[tuple[str, str]]:
        """Return header and body of each message of a turn; a header without <|message|> has an empty body."""
        names = {name: self.codec.added[name] for name in ("<|start|>", "<|message|>", "<|end|>")}
        found, header, body = [], [], None
        for token in [*tokens, names["<|start|>"]]:
            if token == names["<|start|>"]:
                if header or body is not None:
                    found.append((self.codec.decode(header), self.codec.decode(body or [])))
                header, body = [], None
            elif token == names["<|message|>"] and body is None:
                body = []
            elif token != names["<|end|>"]:
                (header if body is None else body).append(token)
        return found


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
            content, role = _text(message), message["role"]
            if role == "assistant":
                thinking = message.get("reasoning_content") or ""
                parts += structure("<|im_start|>assistant\n")
                if i > last_question and (thinking or i == len(messages) - 1):
                    parts += structure("<think>\n") + inside(thinking.strip("\n")) + structure("\n</think>\n\n")
                    content = content.lstrip("\n")
                parts += inside(content) + self._calls(message.get("tool_calls") or [], bool(content))
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
                raise TemplateError(f"message {i}: a {role} message has no place in Qwen3's format")
        return parts + structure("<|im_start|>assistant\n")

    def _calls(self, calls: Sequence[dict[str, Any]], follows_text: bool) -> list[Part]:
        structure, inside, parts = self.codec.structure, self.codec.content, []
        for number, call in enumerate(calls):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            parts += structure("\n" if number or follows_text else "") + structure('<tool_call>\n{"name": "')
            parts += inside(name) + structure('", "arguments": ') + inside(arguments) + structure("}\n</tool_call>")
        return parts

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        text = self.codec.decode(self._body(tokens))
        before, is_thought, after = text.partition("</think>")
        message: Message = {"role": "assistant"}
        if is_thought:
            message["reasoning_content"] = before.rpartition("<think>")[2].strip("\n")
            text = after.lstrip("\n")
        return message | _with_calls(text)


class Plain(Template):
    """A format for a model that has none: each message under its role in brackets, an end token after each turn."""

    def __init__(self, tokenizer: Any, variables: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer, variables)
        self.stops = (tokenizer.eos_token,)

    def head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        """Return tools, one a line, and the messages before the first turn."""
        listed = "".join(json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in tools)
        begin = self.codec.structure(f"[tools]\n{listed}\n") if tools else []
        return begin + [part for message in messages for part in self._message(message)]

    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """See :meth:`Template.tail`."""
        parts = [part for message in messages[first:] for part in self._message(message)]
        return parts + self.codec.structure("[assistant]\n")

    def _message(self, message: Message) -> list[Part]:
        structure, inside = self.codec.structure, self.codec.content
        content, calls = _text(message), message.get("tool_calls") or []
        if message["role"] != "assistant":
            return structure(f"[{message['role']}]\n") + inside(content) + structure("\n\n")
        parts = structure("[assistant]\n") + inside(content)
        for number, call in enumerate(calls):
            function = call["function"]
            parts += structure(("\n" if number or content else "") + '<tool_call>\n{"name": "') + inside(function["name"])
            parts += structure('", "arguments": ') + inside(function["arguments"]) + structure("}\n</tool_call>")
        return parts + structure(f"{self.stops[0]}\n\n")

    def parse(self, tokens: Sequence[int]) -> Message:
        """See :meth:`Template.parse`."""
        return {"role": "assistant"} | _with_calls(self.codec.decode(self._body(tokens)))


def template_for(tokenizer: Any, variables: dict[str, Any] | None = None) -> Template:
    """Return the format of a tokenizer, told by its special tokens.

    Raises:
        TemplateError: for a tokenizer without fast backend or without a token that ends a text.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise TemplateError("several turns need a fast tokenizer: leave out --disable_fast_tokenizer")
    added = tokenizer.get_added_vocab()
    if {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"} <= added.keys():
        return Harmony(tokenizer, variables)
    if "<|im_start|>" in added:
        return Qwen3(tokenizer, variables)
    if tokenizer.eos_token in added:
        return Plain(tokenizer, variables)
    raise TemplateError("the tokenizer has no eos_token, which would end a turn: add one to tokenizer_config.json")


_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def _with_calls(text: str) -> Message:
    """Return content and tool calls of a text with calls in <tool_call>, as Qwen3 writes them."""
    blocks = _TOOL_CALL.findall(text)
    if not blocks:
        return {"content": text}
    calls = [_call(number, _function(block.strip())) for number, block in enumerate(blocks)]
    return {"content": text[: text.index("<tool_call>")].removesuffix("\n"), "tool_calls": calls}


def _function(text: str) -> dict[str, str]:
    """Return name and arguments of a call, the arguments as they were written."""
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


def _call(number: int, function: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": function}


def _recipient(header: str) -> str:
    """Return the tool that a harmony header addresses, "" where it is none."""
    found = re.search(r"\bto=([^\s<]+)", header)
    return found[1].removeprefix("functions.") if found else ""


def _call_names(messages: Sequence[Message]) -> dict[Any, str]:
    """Return the name of the tool of each call, by its id."""
    return {
        call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or []
    }


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


def _is_response(message: Message) -> bool:
    content = _text(message)
    return content.startswith("<tool_response>") and content.endswith("</tool_response>")


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise TemplateError(f"the content of a {message['role']} message is no text: give one string")
    return content


def _map(value: Any, change: Any) -> Any:
    """Return a message with every text in it changed, but for its role."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "role" else _map(item, change) for key, item in value.items()}
    return value


def _undisguised(text: str, names: Sequence[str]) -> str:
    return re.sub("\ue000(\\d+)\ue001", lambda match: names[int(match[1])], text)
