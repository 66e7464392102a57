"""Finds the end of a response's thinking, limits its tokens, and provides the delimiter that ends it.

Works on token ids, never on text. A delimiter spelled in ordinary text does not count. One that the budget cuts in the
middle is completed. Knows no engine; :mod:`grpo.rollout.budgeted_rollout` calls one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo.stack.problem import UserError

PRESETS = ("harmony", "think")
Encode = Callable[[str], list[int]]


class DelimiterError(UserError):
    """A delimiter that this tokenizer cannot encode; the message names the remedy."""


class Watch(Protocol):
    """Follows one response, token by token.

    Attributes:
        closed: whether the thinking has ended. Once true, it stays true.
    """

    closed: bool

    def feed(self, token: int) -> None:
        """Take the next token of the response."""

    def rest(self) -> list[int]:
        """Return the tokens that would end the thinking here: the delimiter, or its missing part."""


class Delimiter(Protocol):
    """Separates thinking from answer."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the token ids of the whole delimiter."""

    def watch(self, prompt: Sequence[int]) -> Watch:
        """Start to follow the response to a prompt, which may itself have begun or ended the thinking."""


def delimiter(name: str, encode: Encode) -> Delimiter:
    """Return a delimiter as this tokenizer encodes it.

    Args:
        name: one of PRESETS ("harmony" of gpt-oss, "think" for `</think>`), or the delimiter's text.
        encode: text to token ids, without adding any.

    Raises:
        DelimiterError: if it is empty, or if the tokenizer lacks a preset's special token.
    """
    if name == "harmony":
        start, channel, message, end = (_single(mark, encode) for mark in ("start", "channel", "message", "end"))
        role, analysis, final = (tuple(encode(word)) for word in ("assistant", "analysis", "final"))
        return HarmonyMessages(start, channel, message, end, role, analysis, final)
    text = "</think>" if name == "think" else name
    tokens = tuple(encode(text))
    misspelt = name not in PRESETS and name.strip().lower() in PRESETS
    if misspelt or not name.strip() or not tokens:
        raise DelimiterError(f"the thinking delimiter {name!r} is invalid", f"use {' or '.join(PRESETS)}, or a text")
    if name == "think" and len(tokens) > 1:
        # As ordinary text it would tokenize differently after every other word, and be missed.
        raise DelimiterError(f"this tokenizer has no token {text}", "use harmony, or the text that ends its thinking")
    blanks = (encode(blank) for blank in ("\n", "\n\n", " "))
    return TextDelimiter(tokens, frozenset(tokens[0] for tokens in blanks if len(tokens) == 1))


def _single(mark: str, encode: Encode) -> int:
    tokens = encode(f"<|{mark}|>")
    if len(tokens) != 1:
        raise DelimiterError(f"this tokenizer has no token <|{mark}|>; harmony is the format of gpt-oss", "use think")
    return tokens[0]


@dataclass(frozen=True)
class TextDelimiter:
    """A delimiter that is one sequence of tokens.

    Attributes:
        tokens: see :class:`Delimiter`.
        blanks: tokens that may follow a delimiter at the end of a prompt.
    """

    tokens: tuple[int, ...]
    blanks: frozenset[int] = frozenset()

    def watch(self, prompt: Sequence[int]) -> "TextWatch":
        """See :class:`Delimiter`."""
        watch = TextWatch(self.tokens)
        end = len(prompt)
        while not self._ends_at(prompt, end) and end and prompt[end - 1] in self.blanks:
            end -= 1
        if self._ends_at(prompt, end):
            watch.closed = True
            return watch
        for token in prompt[max(0, len(prompt) - len(self.tokens) + 1) :]:
            watch.feed(token)
        return watch

    def _ends_at(self, prompt: Sequence[int], end: int) -> bool:
        return end >= len(self.tokens) and tuple(prompt[end - len(self.tokens) : end]) == self.tokens


class TextWatch:
    """Searches for one sequence of tokens (Knuth, Morris and Pratt: each token is read once)."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.closed = False
        self._tokens = tokens
        self._matched = 0
        self._shorter = _borders(tokens)

    def feed(self, token: int) -> None:
        """See :class:`Watch`."""
        if self.closed:
            return
        while self._matched and self._tokens[self._matched] != token:
            self._matched = self._shorter[self._matched]
        self._matched += self._tokens[self._matched] == token
        self.closed = self._matched == len(self._tokens)

    def rest(self) -> list[int]:
        """See :class:`Watch`."""
        return [] if self.closed else list(self._tokens[self._matched :])


def _borders(tokens: Sequence[int]) -> list[int]:
    """Return, for each prefix length, the length of the longest proper prefix that is also a suffix of it."""
    borders = [0, 0]
    for end in range(1, len(tokens)):
        border = borders[end]
        while border and tokens[border] != tokens[end]:
            border = borders[border]
        borders.append(border + (tokens[border] == tokens[end]))
    return borders


@dataclass(frozen=True)
class HarmonyMessages:
    """The messages of gpt-oss: `<|start|>assistant<|channel|>analysis<|message|>...<|end|>`, then the final one.

    Thinking is the assistant's analysis messages without a recipient. Any other message of the assistant ends it, at
    its `<|message|>`: a final one, a commentary, or a tool call in any channel.

    Attributes:
        start, channel, message, end: ids of the special tokens.
        role, analysis, final: token ids of these words.
    """

    start: int
    channel: int
    message: int
    end: int
    role: tuple[int, ...]
    analysis: tuple[int, ...]
    final: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """See :class:`Delimiter`."""
        return (self.end, *self.header)

    @property
    def header(self) -> tuple[int, ...]:
        """Return the token ids with which the final message begins."""
        return (self.start, *self.role, self.channel, *self.final, self.message)

    def watch(self, prompt: Sequence[int]) -> "HarmonyWatch":
        """See :class:`Delimiter`."""
        watch = HarmonyWatch(self)
        begin = len(prompt) - 1
        while begin >= 0 and prompt[begin] != self.start:
            begin -= 1
        last = prompt[begin:] if begin >= 0 else []
        if self.end in last:
            last = last[last.index(self.end) :]  # a finished message is not part of the response
        for token in last:
            watch.feed(token)
        return watch


class HarmonyWatch:
    """Follows the messages of one response: in a header, in a message, or between two."""

    def __init__(self, harmony: HarmonyMessages) -> None:
        self.closed = False
        self._harmony = harmony
        self._header: list[int] | None = None
        self._is_between = False

    def feed(self, token: int) -> None:
        """See :class:`Watch`."""
        if self.closed:
            return
        harmony = self._harmony
        if self._header is None and token != harmony.channel and token != harmony.start:
            self._is_between = token == harmony.end
        elif token == harmony.start or self._header is None:  # a header may lack its beginning
            self._header = [token]
        else:
            self._header.append(token)
            if token == harmony.message:
                self.closed = not self._is_thinking(self._header)
                self._header = None
                self._is_between = False

    def _is_thinking(self, header: list[int]) -> bool:
        harmony = self._harmony
        named = (harmony.channel, *harmony.analysis, harmony.message)
        return tuple(header) in (named, (harmony.start, *harmony.role, *named))

    def rest(self) -> list[int]:
        """See :class:`Watch`. A header other than the final one's is closed first, with one extra token."""
        harmony = self._harmony
        if self.closed:
            return []
        if self._header is None:
            return list(harmony.header if self._is_between else harmony.tokens)
        final, have = harmony.header, tuple(self._header)
        if have[0] == harmony.channel:
            final = final[final.index(harmony.channel) :]
        if final[: len(have)] == have:
            return list(final[len(have) :])
        return [harmony.message, *harmony.tokens]


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
            raise UserError(
                f"the answer budget is {self.answer}, but an answer and its end take 2 tokens", "give 2 or more"
            )

    def within(self, room: int, delimiter: int) -> "Budget":
        """Return the budget for a response with limited room: the answer keeps its part, the thinking shrinks.

        Args:
            room: tokens available for the whole response.
            delimiter: tokens of the delimiter.

        Raises:
            UserError: if not even the delimiter and an answer of 2 tokens fit.
        """
        if room < delimiter + 2:
            raise UserError(
                f"only {room} tokens are left for a response; its delimiter and answer take at least {delimiter + 2}",
                "shorten the prompt or raise the limit",
            )
        answer = min(self.answer, room - delimiter)
        return Budget(min(self.thinking, room - delimiter - answer), answer)

    def left_for_answer(self, delimiter: int, forced: int) -> int:
        """Return the tokens left for an answer after `forced` ones, which may be one more than the delimiter."""
        return self.answer - max(0, forced - delimiter)


class Gate:
    """Decides after every token of one call whether the call goes on.

    Attributes:
        sampled: tokens so far.
        thought: how many of them precede the end of the thinking; all of them while it is open.
    """

    def __init__(self, watch: Watch, budget: Budget) -> None:
        self._watch, self._answer = watch, budget.answer
        self.sampled = self.thought = 0
        self.limit = budget.answer if watch.closed else budget.thinking

    def goes_on(self, token: int) -> bool:
        """Take a sampled token; return whether another one may follow."""
        self.sampled += 1
        if not self._watch.closed:
            self._watch.feed(token)
            self.thought = self.sampled
            if self._watch.closed:
                self.limit = self.sampled + self._answer
        return self.sampled < self.limit
