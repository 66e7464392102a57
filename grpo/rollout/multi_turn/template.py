"""Renders histories and parses turns: from OpenAI messages to a model's tokens, and back.

The model's own chat template renders everything before the first turn: system text, tools, the first question. A
dialect renders the rest (:mod:`grpo.rollout.multi_turn.harmony`, :mod:`grpo.rollout.multi_turn.chatml`). It agrees with
the model's template, and keeps what that would lose: the order of the model's header, and the arguments of a tool call
as written.

Messages are the OpenAI protocol's; an assistant's thinking is in ``reasoning_content``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from grpo.rollout.chat_template import arguments
from grpo.rollout.multi_turn.environment import Message, list_functions
from grpo.rollout.multi_turn.parts import Codec, Part
from grpo.stack.problem import UserError
from grpo.stack.upstream.tokenizer import FastTokenizer


class Template(ABC):
    """One model's format.

    Args:
        tokenizer: a fast tokenizer of transformers, with its chat template.
        variables: further variables for the chat template, see :func:`grpo.rollout.chat_template.variables`.
    """

    stops: Sequence[str]  # special tokens that end a turn

    def __init__(self, tokenizer: FastTokenizer, variables: dict[str, Any] | None = None) -> None:
        self.codec = Codec(tokenizer)
        self._variables = variables or {}

    @property
    def stop_ids(self) -> list[int]:
        """Return the ids of the tokens that end a turn."""
        return [self.codec.added[stop] for stop in self.stops if stop in self.codec.added]

    def render(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[Part]:
        """Return the whole history, and the beginning of the assistant's turn after it.

        Raises:
            UserError: for a message that does not fit.
        """
        first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        return self.head(messages[:first], tools) + self.tail(messages, first)

    def head(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Part]:
        """Return the messages before the first turn, rendered by the model's own chat template."""
        # Names of special tokens in messages are masked while the template renders them.
        names = [*sorted(self.codec.added, key=len, reverse=True), "\ue000"]
        pattern = re.compile("|".join(map(re.escape, names)))
        disguised = [_map(message, lambda text: pattern.sub(lambda m: f"\ue000{names.index(m[0])}\ue001", text))
                     for message in messages]  # fmt: skip
        text = self.codec.tokenizer.apply_chat_template(
            disguised, tokenize=False, add_generation_prompt=False, **arguments(self._variables) | self.describe(tools)
        )
        return [
            part if part.token is not None else self.codec.content(_restore_names(part.text, names))[0]
            for part in self.codec.structure(text)
        ]

    def describe(self, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the variables of the chat template that describe tools."""
        return {"tools": list_functions(tools) or None}

    @abstractmethod
    def tail(self, messages: Sequence[Message], first: int) -> list[Part]:
        """Return messages from `first` on, and the beginning of the assistant's turn."""

    @abstractmethod
    def parse(self, tokens: Sequence[int]) -> Message:
        """Return the assistant's message for a turn's sampled tokens, whole or cut. Never raises."""

    def _body(self, tokens: Sequence[int]) -> list[int]:
        """Return a turn without its end token."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.stop_ids else tokens)


def get_text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise UserError(f"the content of a {message['role']} message is not text", "give one string")
    return content


def make_call(number: int, function: dict[str, str]) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": function}


def _map(value: Any, change: Callable[[str], str]) -> Any:
    """Return a message with every text in it changed, except its role."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    if isinstance(value, dict):
        return {key: item if key == "role" else _map(item, change) for key, item in value.items()}
    return value


def _restore_names(text: str, names: Sequence[str]) -> str:
    return re.sub("\ue000(\\d+)\ue001", lambda match: names[int(match[1])], text)
