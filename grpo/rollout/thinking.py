"""Finds the end of a response's thinking, limits its tokens, and provides the delimiter that ends it.

Works on token ids, never on text. A delimiter spelled in ordinary text does not count. One that the budget cuts in the
middle is completed. Knows no engine; :mod:`grpo.rollout.budgeted_rollout` calls one.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.environments.settings import has_environment
from grpo.rollout.thinking_marks import HarmonyMessages, HarmonyWatch, TextDelimiter, TextWatch
from grpo.stack.problem import UserError
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.tokenizer import Tokenizer

PRESETS = ("harmony", "think")
EXECUTOR = Path(__file__).with_name("budget_executor.py")
_VARIABLE = "GRPO_THINKING"  # passes the budget from the trainer's flags to the engines' executor
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


@dataclass(frozen=True)
class ThinkingSettings:
    """The settings of the executor.

    Attributes:
        mark: names the delimiter, see :func:`grpo.rollout.thinking.delimiter`.
        reward: OpenRLHF's ``--remote_rm_url``; "" if not set.
    """

    budget: Budget
    mark: str
    reward: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "ThinkingSettings":
        """Return the settings that :func:`pass_to_engines` wrote.

        Raises:
            UserError: if they are missing.
        """
        if _VARIABLE not in environ:
            raise UserError(f"{_VARIABLE} is not set", "use --thinking_budget, which sets the executor")
        thinking, answer, mark, reward = json.loads(environ[_VARIABLE])
        return cls(Budget(thinking, answer), mark, reward)

    def delimiter(self, tokenizer: Tokenizer) -> Delimiter:
        """Return the delimiter as a tokenizer encodes it."""
        return delimiter(self.mark, lambda text: tokenizer.encode(text, add_special_tokens=False))


def read_given(environ: Mapping[str, str]) -> ThinkingSettings | None:
    """Return the settings that :func:`pass_to_engines` wrote; None if the run has no thinking budget."""
    return ThinkingSettings.from_environment(environ) if _VARIABLE in environ else None


def environment(thinking: int, answer: int, mark: str, reward: str) -> dict[str, str]:
    """Return the variable from which :meth:`ThinkingSettings.from_environment` reads these values."""
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
