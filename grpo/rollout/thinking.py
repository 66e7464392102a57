"""The thinking budget: where a response's thinking ends, how long it may be, and the tokens that end it.

Works on token ids, never on text: a delimiter spelled in ordinary text does not count. Knows no engine;
:mod:`grpo.rollout.budgeted_rollout` calls one.

A delimiter separates thinking from answer: a budget inserts its ``tokens``. Its ``watch`` follows the response to a
prompt, which may itself have begun or ended the thinking. A watch takes the response token by token (``feed``). It is
``closed`` once the thinking has ended, and stays so. Until then, ``rest`` returns the tokens that would end the
thinking here: the delimiter, or its missing part.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.tokenizer import Tokenizer

PRESETS = ("harmony", "think")
EXECUTOR = Path(__file__).with_name("budget_executor.py")
_VARIABLE = "GRPO_THINKING"  # passes the budget from the trainer's flags to the engines' executor
Encode = Callable[[str], list[int]]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class TextDelimiter:
    """A delimiter that is one sequence of tokens.

    Attributes:
        tokens: what a budget inserts.
        mark: the part of it that ends the thinking, also where the model writes it itself.
        blanks: tokens that may follow a delimiter at the end of a prompt.
    """

    tokens: Tokens
    mark: Tokens
    blanks: frozenset[int] = frozenset()

    def watch(self, prompt: Sequence[int]) -> "TextWatch":
        """Start to follow the response to a prompt."""
        return TextWatch(self, prompt)


class TextWatch:
    """Follows one response to a mark."""

    def __init__(self, delimiter: TextDelimiter, prompt: Sequence[int]) -> None:
        self._delimiter, self._tokens = delimiter, list(prompt)
        end = len(prompt)
        while end and not _ends_with(prompt[:end], delimiter.mark) and prompt[end - 1] in delimiter.blanks:
            end -= 1
        self.closed = _ends_with(prompt[:end], delimiter.mark)

    def feed(self, token: int) -> None:
        """Take the next token of the response."""
        self._tokens.append(token)
        self.closed = self.closed or _ends_with(self._tokens, self._delimiter.mark)

    def rest(self) -> list[int]:
        """Return the tokens that would end the thinking here."""
        inserted = self._delimiter.tokens
        have = next(n for n in reversed(range(len(inserted))) if _ends_with(self._tokens, inserted[:n]))
        return [] if self.closed else list(inserted[have:])


def _ends_with(tokens: Sequence[int], end: Tokens) -> bool:
    return tuple(tokens[max(0, len(tokens) - len(end)) :]) == end


@dataclass(frozen=True)
class Harmony:
    """The messages of gpt-oss: `<|start|>assistant<|channel|>analysis<|message|>...<|end|>`, then the final one.

    Thinking is the assistant's analysis messages without a recipient. Any other message of the assistant ends it, at
    its `<|message|>`: a final one, a commentary, or a tool call in any channel.

    Attributes:
        start, channel, message, end: ids of the special tokens.
        role, analysis, final: what follows `<|start|>`, and the headers of the two messages from `<|channel|>` on.
        before, after: what a budget inserts around the delimiter: at the end of the thought, and at the beginning of
            the answer.
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

    def watch(self, prompt: Sequence[int]) -> "HarmonyWatch":
        """Start to follow the response to a prompt."""
        watch = HarmonyWatch(self)
        begin = max((at for at, token in enumerate(prompt) if token == self.start), default=len(prompt))
        last = list(prompt[begin:])
        if self.end in last:
            last = last[last.index(self.end) :]  # a finished message is not part of the response
        for token in last:
            watch.feed(token)
        return watch


class HarmonyWatch:
    """Follows the messages of one response."""

    def __init__(self, harmony: Harmony) -> None:
        self.closed = False
        self._harmony = harmony
        self._tail: list[int] = []  # since the last <|message|>

    def feed(self, token: int) -> None:
        """Take the next token of the response."""
        self._tail.append(token)
        harmony = self._harmony
        if token == harmony.message:
            header = self._find_header()
            thinking = (harmony.analysis, (harmony.start, *harmony.role, *harmony.analysis))
            self.closed = self.closed or (bool(header) and header not in thinking)
            self._tail = []

    def _find_header(self) -> Tokens:
        """Return the header in which the response stands, from its last <|start|>; that may be missing."""
        tail, harmony = self._tail, self._harmony
        if harmony.start in tail:
            return tuple(tail[len(tail) - 1 - tail[::-1].index(harmony.start) :])
        return tuple(tail[tail.index(harmony.channel) :]) if harmony.channel in tail else ()

    def rest(self) -> list[int]:
        """Return the tokens that would end the thinking here.

        A header other than the final one's is closed first, with one extra token.
        """
        harmony, header = self._harmony, self._find_header()
        if self.closed:
            return []
        final = harmony.final if header[:1] == (harmony.channel,) else (harmony.start, *harmony.role, *harmony.final)
        if header and final[: len(header)] != header:
            return [harmony.message, *harmony.tokens]
        if header or self._tail[-1:] == [harmony.end]:
            return [*final[len(header) :], *harmony.after]
        return list(harmony.tokens)


Delimiter = Harmony | TextDelimiter


def delimiter(name: str, encode: Encode) -> Delimiter:
    """Return a delimiter as this tokenizer encodes it.

    The thinking's own end does not depend on the text that a budget inserts: that of gpt-oss is its format's, and that
    of a text with `</think>` is this token. Of a model with neither, it is the text itself.

    Args:
        name: one of PRESETS ("harmony" of gpt-oss, "think" for `</think>`), or the delimiter's text.
        encode: text to token ids, without adding any.

    Raises:
        UserError: if it is empty, if the tokenizer lacks a preset's special token, or if gpt-oss could not answer after
            it.
    """
    harmony = _encode_harmony(encode)
    if name == "harmony":
        if harmony is None:
            raise UserError("this tokenizer lacks tokens of harmony, the format of gpt-oss", "use think")
        return harmony
    text = "</think>" if name == "think" else name
    tokens = tuple(encode(text))
    misspelt = name not in PRESETS and name.strip().lower() in PRESETS
    if misspelt or not name.strip() or not tokens:
        raise UserError(f"the thinking delimiter {name!r} is invalid", f"use {' or '.join(PRESETS)}, or a text")
    if name == "think" and len(tokens) > 1:
        # As ordinary text it would tokenize differently after every other word, and be missed.
        raise UserError(f"this tokenizer has no token {text}", "use harmony, or the text that ends its thinking")
    mark = tuple(encode("</think>"))
    is_marked = len(mark) == 1 and mark[0] in tokens
    if harmony is not None and not is_marked:
        return _surround(harmony, name, tokens)
    blanks = (encode(blank) for blank in ("\n", "\n\n", " "))
    return TextDelimiter(tokens, mark if is_marked else tokens, frozenset(ids[0] for ids in blanks if len(ids) == 1))


def _encode_harmony(encode: Encode) -> Harmony | None:
    """Return the format of gpt-oss; None for a tokenizer without its special tokens."""
    marks = [encode(f"<|{mark}|>") for mark in ("start", "channel", "message", "end")]
    if any(len(tokens) != 1 for tokens in marks):
        return None
    start, channel, message, end = (tokens[0] for tokens in marks)
    analysis, final = ((channel, *encode(word), message) for word in ("analysis", "final"))
    return Harmony(start, channel, message, end, tuple(encode("assistant")), analysis, final)


def _surround(harmony: Harmony, name: str, tokens: Tokens) -> Harmony:
    """Return the delimiter of a text that contains the end of gpt-oss's thinking."""
    end = harmony.tokens
    at = next((at for at in range(len(tokens)) if tokens[at : at + len(end)] == end), len(tokens))
    before, after = tokens[:at], tokens[at + len(end) :]
    if at == len(tokens) or {*before, *after} & {harmony.start, harmony.channel, harmony.message, harmony.end}:
        raise UserError(
            f"after the thinking delimiter {name!r}, gpt-oss would not answer in its final message",
            "use harmony, or a text with <|end|><|start|>assistant<|channel|>final<|message|> in it",
        )
    return replace(harmony, before=before, after=after)


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
        if room < delimiter + 2:
            raise UserError(
                f"only {room} tokens are left for a response; its delimiter and answer take at least {delimiter + 2}",
                "shorten the prompt or raise the limit",
            )
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
