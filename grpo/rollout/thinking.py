"""Finds the end of a response's thinking, limits its tokens, and provides the delimiter that ends it.

Works on token ids, never on text. A delimiter spelled in ordinary text does not count. One that the budget cuts in the
middle is completed. Knows no engine; :mod:`grpo.rollout.budgeted_rollout` calls one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from grpo.rollout.thinking_marks import HarmonyMessages, HarmonyWatch, TextDelimiter, TextWatch
from grpo.stack.problem import UserError

PRESETS = ("harmony", "think")
Encode = Callable[[str], list[int]]


class DelimiterError(UserError):
    """A delimiter that this tokenizer cannot encode; the message names the remedy."""


Delimiter = HarmonyMessages | TextDelimiter
Watch = HarmonyWatch | TextWatch  # of one response


def delimiter(name: str, encode: Encode) -> Delimiter:
    """Return a delimiter as this tokenizer encodes it.

    The thinking's own end does not depend on the text that a budget inserts: that of gpt-oss is its format's, and that
    of a text with `</think>` is this token. Of a model with neither, it is the text itself.

    Args:
        name: one of PRESETS ("harmony" of gpt-oss, "think" for `</think>`), or the delimiter's text.
        encode: text to token ids, without adding any.

    Raises:
        DelimiterError: if it is empty, if the tokenizer lacks a preset's special token, or if gpt-oss could not answer
            after it.
    """
    messages = _harmony(encode)
    if name == "harmony":
        if messages is None:
            raise DelimiterError("this tokenizer lacks tokens of harmony, the format of gpt-oss", "use think")
        return messages
    text = "</think>" if name == "think" else name
    tokens = tuple(encode(text))
    misspelt = name not in PRESETS and name.strip().lower() in PRESETS
    if misspelt or not name.strip() or not tokens:
        raise DelimiterError(f"the thinking delimiter {name!r} is invalid", f"use {' or '.join(PRESETS)}, or a text")
    if name == "think" and len(tokens) > 1:
        # As ordinary text it would tokenize differently after every other word, and be missed.
        raise DelimiterError(f"this tokenizer has no token {text}", "use harmony, or the text that ends its thinking")
    mark = tuple(encode("</think>"))
    is_marked = len(mark) == 1 and mark[0] in tokens
    if messages is not None and not is_marked:
        return _harmony_text(messages, name, tokens)
    blanks = (encode(blank) for blank in ("\n", "\n\n", " "))
    blank_tokens = frozenset(tokens[0] for tokens in blanks if len(tokens) == 1)
    return TextDelimiter(tokens, mark if is_marked else tokens, blank_tokens)


def _harmony(encode: Encode) -> HarmonyMessages | None:
    """Return the format of gpt-oss; None for a tokenizer without its special tokens."""
    marks = [encode(f"<|{mark}|>") for mark in ("start", "channel", "message", "end")]
    if any(len(tokens) != 1 for tokens in marks):
        return None
    start, channel, message, end = (tokens[0] for tokens in marks)
    role, analysis, final = (tuple(encode(word)) for word in ("assistant", "analysis", "final"))
    return HarmonyMessages(start, channel, message, end, role, analysis, final)


def _harmony_text(messages: HarmonyMessages, name: str, tokens: tuple[int, ...]) -> HarmonyMessages:
    """Return the delimiter of a text that contains the end of gpt-oss's thinking."""
    end = messages.tokens
    at = next((at for at in range(len(tokens)) if tokens[at : at + len(end)] == end), None)
    before, after = (tokens[:at], tokens[at + len(end) :]) if at is not None else (tokens, ())
    if at is None or {*before, *after} & {messages.start, messages.channel, messages.message, messages.end}:
        raise DelimiterError(
            f"after the thinking delimiter {name!r}, gpt-oss would not answer in its final message",
            "use harmony, or a text with <|end|><|start|>assistant<|channel|>final<|message|> in it",
        )
    return replace(messages, before=before, after=after)


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
    """Decides after every token of one call whether the call continues.

    Attributes:
        sampled: tokens so far.
        thought: how many of them precede the end of the thinking; all of them while it is open.
    """

    def __init__(self, watch: Watch, budget: Budget) -> None:
        self._watch, self._answer = watch, budget.answer
        self.sampled = self.thought = 0
        self.limit = budget.answer if watch.closed else budget.thinking

    def take_token(self, token: int) -> bool:
        """Take a sampled token; return whether another one may follow."""
        self.sampled += 1
        if not self._watch.closed:
            self._watch.feed(token)
            self.thought = self.sampled
            if self._watch.closed:
                self.limit = self.sampled + self._answer
        return self.sampled < self.limit
