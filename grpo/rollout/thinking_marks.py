"""The delimiters of :mod:`grpo.rollout.thinking`: gpt-oss's messages, and a sequence of tokens.

A delimiter separates thinking from answer: a budget inserts its ``tokens``. Its ``watch`` follows the response to a
prompt, which may itself have begun or ended the thinking. A watch takes the response token by token (``feed``). It is
``closed`` once the thinking has ended, and stays so. Until then, ``rest`` returns the tokens that would end the
thinking here: the delimiter, or its missing part.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextDelimiter:
    """A delimiter that is one sequence of tokens.

    Attributes:
        tokens: what a budget inserts.
        mark: the part of it that ends the thinking, also where the model writes it itself.
        blanks: tokens that may follow a delimiter at the end of a prompt.
    """

    tokens: tuple[int, ...]
    mark: tuple[int, ...]
    blanks: frozenset[int] = frozenset()

    def watch(self, prompt: Sequence[int]) -> "TextWatch":
        """Start to follow the response to a prompt."""
        before = list(prompt)
        while before and not _ends_with(before, self.mark) and before[-1] in self.blanks:
            before.pop()
        return TextWatch(self, prompt, _ends_with(before, self.mark))


class TextWatch:
    """Follows one response: whether the mark has come, and how much of what would be inserted is already there."""

    def __init__(self, delimiter: TextDelimiter, prompt: Sequence[int], closed: bool) -> None:
        self.closed = closed
        self._delimiter, self._tokens = delimiter, list(prompt)

    def feed(self, token: int) -> None:
        """Take the next token of the response."""
        self._tokens.append(token)
        self.closed = self.closed or _ends_with(self._tokens, self._delimiter.mark)

    def rest(self) -> list[int]:
        """Return the tokens that would end the thinking here."""
        inserted = self._delimiter.tokens
        have = next(n for n in reversed(range(len(inserted))) if _ends_with(self._tokens, inserted[:n]))
        return [] if self.closed else list(inserted[have:])


def _ends_with(tokens: list[int], end: tuple[int, ...]) -> bool:
    return tuple(tokens[max(0, len(tokens) - len(end)) :]) == end


@dataclass(frozen=True)
class HarmonyMessages:
    """The messages of gpt-oss: `<|start|>assistant<|channel|>analysis<|message|>...<|end|>`, then the final one.

    Thinking is the assistant's analysis messages without a recipient. Any other message of the assistant ends it, at
    its `<|message|>`: a final one, a commentary, or a tool call in any channel.

    Attributes:
        start, channel, message, end: ids of the special tokens.
        role, analysis, final: token ids of these words.
        before, after: what a budget inserts around the delimiter: at the end of the thought, and at the beginning of
            the answer.
    """

    start: int
    channel: int
    message: int
    end: int
    role: tuple[int, ...]
    analysis: tuple[int, ...]
    final: tuple[int, ...]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return what a budget inserts."""
        return (*self.before, self.end, *self.header, *self.after)

    @property
    def header(self) -> tuple[int, ...]:
        """Return the token ids with which the final message begins."""
        return (self.start, *self.role, self.channel, *self.final, self.message)

    def watch(self, prompt: Sequence[int]) -> "HarmonyWatch":
        """Start to follow the response to a prompt."""
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
        """Take the next token of the response."""
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
        """Return the tokens that would end the thinking here.

        A header other than the final one's is closed first, with one extra token.
        """
        harmony = self._harmony
        if self.closed:
            return []
        if self._header is None:
            return [*harmony.header, *harmony.after] if self._is_between else list(harmony.tokens)
        final, have = harmony.header, tuple(self._header)
        if have[0] == harmony.channel:
            final = final[final.index(harmony.channel) :]
        if final[: len(have)] == have:
            return [*final[len(have) :], *harmony.after]
        return [harmony.message, *harmony.tokens]
