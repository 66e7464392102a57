"""The delimiters of :mod:`grpo.rollout.thinking`: gpt-oss's messages, and a sequence of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextDelimiter:
    """A delimiter that is one sequence of tokens.

    Attributes:
        tokens: what a budget inserts; see ``Delimiter``.
        mark: the part of it that ends the thinking, also where the model writes it itself.
        blanks: tokens that may follow a delimiter at the end of a prompt.
    """

    tokens: tuple[int, ...]
    mark: tuple[int, ...]
    blanks: frozenset[int] = frozenset()

    def watch(self, prompt: Sequence[int]) -> "TextWatch":
        """See ``Delimiter``."""
        watch = TextWatch(self.tokens, self.mark, prompt)
        end = len(prompt)
        while not self._ends_at(prompt, end) and end and prompt[end - 1] in self.blanks:
            end -= 1
        watch.closed = self._ends_at(prompt, end)
        return watch

    def _ends_at(self, prompt: Sequence[int], end: int) -> bool:
        return end >= len(self.mark) and tuple(prompt[end - len(self.mark) : end]) == self.mark


class TextWatch:
    """Follows one response: whether the mark has come, and how much of what would be inserted is already there."""

    def __init__(self, inserted: Sequence[int], mark: Sequence[int], prompt: Sequence[int]) -> None:
        self.closed = False
        self._inserted, self._mark = Search(inserted), Search(mark)
        for search in (self._inserted, self._mark):
            for token in prompt[max(0, len(prompt) - len(search.tokens) + 1) :]:
                search.feed(token)

    def feed(self, token: int) -> None:
        """See ``Watch``."""
        self._inserted.feed(token)
        self._mark.feed(token)
        self.closed = self.closed or self._mark.found

    def rest(self) -> list[int]:
        """See ``Watch``."""
        return [] if self.closed else list(self._inserted.tokens[self._inserted.matched :])


class Search:
    """Searches for one sequence of tokens (Knuth, Morris and Pratt: each token is read once).

    Attributes:
        matched: how many of its tokens the last ones were.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.matched = 0
        self._shorter = _borders(tokens)

    @property
    def found(self) -> bool:
        """Return whether the sequence ends here."""
        return self.matched == len(self.tokens)

    def feed(self, token: int) -> None:
        """Take the next token."""
        if self.found:
            self.matched = self._shorter[self.matched]
        while self.matched and self.tokens[self.matched] != token:
            self.matched = self._shorter[self.matched]
        self.matched += self.tokens[self.matched] == token


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
        """See ``Delimiter``."""
        return (*self.before, self.end, *self.header, *self.after)

    @property
    def header(self) -> tuple[int, ...]:
        """Return the token ids with which the final message begins."""
        return (self.start, *self.role, self.channel, *self.final, self.message)

    def watch(self, prompt: Sequence[int]) -> "HarmonyWatch":
        """See ``Delimiter``."""
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
        """See ``Watch``."""
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
        """See ``Watch``. A header other than the final one's is closed first, with one extra token."""
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
