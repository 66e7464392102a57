"""The thinking budget: where gpt-oss's thinking ends, how long it may be, and the tokens that end it.

Works on token ids, never on text: markers spelled in ordinary text do not count. Knows no engine;
:mod:`grpo.rollout.budgeted_rollout` calls one.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.stack.problem import UserError
from grpo.stack.upstream import Arguments, Tokenizer

HARMONY = "harmony"  # the name of the delimiter that is nothing but the end of a message and the beginning of the next
EXECUTOR = Path(__file__).with_name("budget_executor.py")
_VARIABLE = "GRPO_THINKING"  # passes the budget from the trainer's flags to the engines' executor
Encode = Callable[[str], list[int]]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Delimiter:
    """What separates thinking from answer: `<|end|><|start|>assistant<|channel|>final<|message|>`, and text around it.

    Attributes:
        start, channel, message, end: ids of the special tokens.
        role, analysis, final: what follows `<|start|>`, and the headers of the two messages from `<|channel|>` on.
        before, after: text that a budget adds: at the end of the thought, and at the beginning of the answer.
    """

    start: int
    channel: int
    message: int
    end: int
    role: Tokens
    analysis: Tokens
    final: Tokens
    before: Tokens = ()
    after: Tokens = ()

    @property
    def tokens(self) -> Tokens:
        """Return what a budget inserts."""
        return (*self.before, self.end, self.start, *self.role, *self.final, *self.after)

    def watch(self, prompt: Sequence[int]) -> "Watch":
        """Start to follow the response to a prompt, which may itself have begun or ended the thinking."""
        watch = Watch(self)
        begin = max((at for at, token in enumerate(prompt) if token == self.start), default=len(prompt))
        last = list(prompt[begin:])
        if self.end in last:
            last = last[last.index(self.end) :]  # a finished message is not part of the response
        for token in last:
            watch.feed(token)
        return watch


class Watch:
    """Follows the messages of one response.

    Thinking is the assistant's analysis messages without a recipient. Any other message of the assistant ends it, at
    its `<|message|>`: a final one, a commentary, or a tool call in any channel.

    Attributes:
        closed: whether the thinking has ended. It never begins again.
    """

    def __init__(self, delimiter: Delimiter) -> None:
        self.closed = False
        self._delimiter = delimiter
        self._tail: list[int] = []  # since the last <|message|>

    def feed(self, token: int) -> None:
        """Take the next token of the response."""
        self._tail.append(token)
        marks = self._delimiter
        if token == marks.message:
            header = self._find_header()
            thinking = (marks.analysis, (marks.start, *marks.role, *marks.analysis))
            self.closed = self.closed or (bool(header) and header not in thinking)
            self._tail = []

    def _find_header(self) -> Tokens:
        """Return the header in which the response stands, from its last <|start|>; that may be missing."""
        tail, marks = self._tail, self._delimiter
        if marks.start in tail:
            return tuple(tail[len(tail) - 1 - tail[::-1].index(marks.start) :])
        return tuple(tail[tail.index(marks.channel) :]) if marks.channel in tail else ()

    def rest(self) -> list[int]:
        """Return the tokens that would end the thinking here: the delimiter, or its missing part.

        A header other than the final one's is closed first, with one extra token.
        """
        marks, header = self._delimiter, self._find_header()
        if self.closed:
            return []
        final = marks.final if header[:1] == (marks.channel,) else (marks.start, *marks.role, *marks.final)
        if header and final[: len(header)] != header:
            return [marks.message, *marks.tokens]
        if header or self._tail[-1:] == [marks.end]:
            return [*final[len(header) :], *marks.after]
        return list(marks.tokens)


def delimiter(name: str, encode: Encode) -> Delimiter:
    """Return a delimiter as gpt-oss's tokenizer encodes it.

    Args:
        name: HARMONY, or a text that contains the end of gpt-oss's thinking.
        encode: text to token ids, without adding any.

    Raises:
        UserError: if the tokenizer is not gpt-oss's, or if the model could not answer after the text.
    """
    special = [encode(f"<|{mark}|>") for mark in ("start", "channel", "message", "end")]
    if any(len(tokens) != 1 for tokens in special):
        raise UserError("a thinking budget needs the tokens of harmony, the format of gpt-oss", "remove the budget")
    start, channel, message, end = marks = [token for [token] in special]
    analysis, final = ((channel, *encode(word), message) for word in ("analysis", "final"))
    made = Delimiter(start, channel, message, end, tuple(encode("assistant")), analysis, final)
    if name == HARMONY:
        return made
    text, size = tuple(encode(name)), len(made.tokens)
    at = next((at for at in range(len(text)) if text[at : at + size] == made.tokens), len(text))
    before, after = text[:at], text[at + size :]
    if at == len(text) or {*before, *after} & {*marks}:
        raise UserError(
            f"after the thinking delimiter {name!r}, gpt-oss would not answer in its final message",
            f"use {HARMONY}, or a text with <|end|><|start|>assistant<|channel|>final<|message|> in it",
        )
    return replace(made, before=before, after=after)


@dataclass(frozen=True)
class Budget:
    """The token budgets of a response, for its thinking and for its answer.

    Raises:
        UserError: if thinking is below 0, or answer below 2 (one token is only its end).
    """

    thinking: int
    answer: int

    def __post_init__(self) -> None:
        if self.thinking < 0:
            raise UserError(f"the thinking budget is {self.thinking}", "give 0 or more")
        if self.answer < 2:
            raise UserError(f"the answer budget is {self.answer}; answer and end take 2 tokens", "give 2 or more")

    def within(self, room: int, delimiter: int) -> "Budget":
        """Return the budget for a response with limited room: the answer keeps its part, the thinking shrinks.

        Args:
            room: tokens available for the whole response.
            delimiter: tokens of the delimiter.

        Raises:
            UserError: if not even the delimiter and an answer of 2 tokens fit.
        """
        answer = min(self.answer, room - delimiter)
        return Budget(min(self.thinking, room - delimiter - answer), answer)


@dataclass(frozen=True)
class ThinkingSettings:
    """The settings of a run's budget in its engines.

    Attributes:
        mark: names the delimiter, see :func:`delimiter`.
        reward: OpenRLHF's ``--remote_rm_url``; "" if not set.
    """

    budget: Budget
    mark: str
    reward: str

    def read_delimiter(self, tokenizer: Tokenizer) -> Delimiter:
        """Return the delimiter as a tokenizer encodes it."""
        return delimiter(self.mark, lambda text: tokenizer.encode(text, add_special_tokens=False))


def read_settings(environ: Mapping[str, str]) -> ThinkingSettings | None:
    """Return the settings that :func:`pass_to_engines` wrote; None if the run has no thinking budget."""
    if _VARIABLE not in environ:
        return None
    thinking, answer, mark, reward = json.loads(environ[_VARIABLE])
    return ThinkingSettings(Budget(thinking, answer), mark, reward)


def environment(thinking: int, answer: int, mark: str, reward: str) -> dict[str, str]:
    """Return the variable from which :func:`read_settings` reads these values."""
    return {_VARIABLE: json.dumps([thinking, answer, mark, reward])}


def pass_to_engines(args: Arguments) -> None:
    """Let the engines roll out with a thinking budget if ``--thinking_budget`` is given. Called before Ray starts.

    OpenRLHF ignores ``--remote_rm_url`` if an executor is named, and passes no arguments to it. An environment has its
    own executor, which reads the same settings.
    """
    if args.thinking_budget is None or args.answer_budget is None or args.thinking_delimiter is None:
        return
    os.environ.update(
        environment(args.thinking_budget, args.answer_budget, args.thinking_delimiter, args.remote_rm_url or "")
    )
    if not has_environment(args):
        args.agent_func_path = str(EXECUTOR)
