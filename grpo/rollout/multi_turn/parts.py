"""Rendered text and tokens in one comparable form: special tokens apart, the text between them whole.

Text is encoded by runs, from one special token to the next, as a tokenizer encodes a full render. The name of a special
token inside a message's content stays text: an environment cannot end a turn or speak for another role.
"""

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo.rollout.trajectory import Origin
from grpo.stack.upstream.tokenizer import FastTokenizer


@dataclass(frozen=True)
class Part:
    """A piece of a render.

    Attributes:
        origin: TEMPLATE, or ENVIRONMENT for the content of messages.
        token: id of a special token; None for text.
    """

    text: str
    origin: Origin
    token: int | None = None


@dataclass(frozen=True)
class Unit:
    """A special token, or the text between two of them, with the indices of its tokens (unset for a render).

    Attributes:
        token: id of a special token; None for text.
        start, end: where its tokens begin and end.
    """

    text: str
    token: int | None
    start: int = 0
    end: int = 0

    def same(self, other: "Unit") -> bool:
        """Return whether both are the same special token or the same text."""
        return self.token == other.token and self.text == other.text


@dataclass(frozen=True)
class Difference:
    """Where a render diverges from the tokens before it.

    Attributes:
        position: of the first token that the render does not have.
        shared: tokens up to the last special token before it, which the render has too.
        tokens_text, render_text: the texts of both from there on.
    """

    position: int
    shared: int
    tokens_text: str
    render_text: str


class Codec:
    """A tokenizer that distinguishes text from special tokens.

    Args:
        tokenizer: a fast tokenizer of transformers. All its added tokens count as special.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self.tokenizer = tokenizer
        self.added: dict[str, int] = tokenizer.get_added_vocab()
        self._texts = {token: text for text, token in self.added.items()}
        longest_first = sorted(self.added, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def structure(self, text: str) -> list[Part]:
        """Return template text as parts; names of special tokens in it become these tokens."""
        parts, at = [], 0
        for match in self.pattern.finditer(text):
            if match.start() > at:
                parts.append(Part(text[at : match.start()], Origin.TEMPLATE))
            parts.append(Part(match[0], Origin.TEMPLATE, self.added[match[0]]))
            at = match.end()
        return [*parts, Part(text[at:], Origin.TEMPLATE)] if at < len(text) else parts

    def content(self, text: str) -> list[Part]:
        """Return a message's text as parts; nothing in it is a special token."""
        return [Part(text, Origin.ENVIRONMENT)] if text else []

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of text, none of them special."""
        if not self.pattern.search(text):
            return self.tokenizer.encode(text, add_special_tokens=False)
        backend, text = self.tokenizer.backend_tokenizer, self._normal(text)
        pieces = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer is not None else [(text, None)]
        return [token.id for piece, _ in pieces for token in backend.model.tokenize(piece)]

    def encode(self, parts: Sequence[Part]) -> list[tuple[list[int], Origin]]:
        """Return the tokens of parts with their origins; a run that includes message content is ENVIRONMENT."""
        pieces: list[tuple[list[int], Origin]] = []
        for run in _runs(parts):
            if run[0].token is not None:
                pieces.append(([run[0].token], Origin.TEMPLATE))
                continue
            is_content = any(part.origin is Origin.ENVIRONMENT for part in run)
            text = "".join(part.text for part in run)
            pieces.append((self.encode_text(text), Origin.ENVIRONMENT if is_content else Origin.TEMPLATE))
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones by their names."""
        return "".join(unit.text for unit in self.units(tokens))

    def units(self, tokens: Sequence[int]) -> list[Unit]:
        """Return tokens as units."""
        units, start = [], 0
        for index, token in enumerate(tokens):
            if token in self._texts:
                if index > start:
                    units.append(Unit(self._text(tokens[start:index]), None, start, index))
                units.append(Unit(self._texts[token], token, index, index + 1))
                start = index + 1
        if start < len(tokens):
            units.append(Unit(self._text(tokens[start:]), None, start, len(tokens)))
        return units

    def _text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def continuation(self, tokens: Sequence[int], parts: Sequence[Part]) -> list[Part] | Difference:
        """Return what a render adds to tokens, or where the two differ.

        Tokens are compared by their text, as the tokenizer normalizes it. Tokens that a tokenizer would not have chosen
        are therefore no difference.
        """
        runs = _runs(parts)
        rendered = [Unit(self._normal(_text(run)), run[0].token) for run in runs]
        units = self.units(tokens)
        for number, written in enumerate(units):
            unit = replace(written, text=self._normal(written.text))
            other = rendered[number] if number < len(rendered) else None
            if other and unit.same(other):
                continue
            is_last = number == len(units) - 1
            is_text = other and unit.token is None and other.token is None
            if is_last and is_text and _text(runs[number]).startswith(written.text):
                rest = _drop(runs[number], len(written.text))
                return rest + [part for run in runs[number + 1 :] for part in run]
            return self._difference(tokens, unit, rendered[number:])
        return [part for run in runs[len(units) :] for part in run]

    def _normal(self, text: str) -> str:
        """Return text as the tokenizer normalizes it before it encodes it, for example in NFC."""
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _difference(self, tokens: Sequence[int], unit: Unit, rendered: Sequence[Unit]) -> Difference:
        """Return where a unit and the rest of a render diverge."""
        other = rendered[0].text if rendered and unit.token is None and rendered[0].token is None else ""
        same = next((i for i, (a, b) in enumerate(zip(unit.text, other, strict=False)) if a != b), None)
        same = min(len(unit.text), len(other)) if same is None else same
        position = unit.start  # the token in which the texts diverge
        if same:
            ends = range(unit.start, unit.end)
            position += bisect.bisect_right(
                ends, same, key=lambda end: len(self._normal(self._text(tokens[unit.start : end + 1])))
            )
        render = "".join(each.text for each in rendered)
        return Difference(position, unit.start, self.decode(tokens[position : position + 12]), render[same : same + 60])


def _runs(parts: Sequence[Part]) -> list[list[Part]]:
    """Return the parts grouped into special tokens and runs of text, without empty text."""
    runs: list[list[Part]] = []
    for part in parts:
        if part.token is None and not part.text:
            continue
        if part.token is None and runs and runs[-1][0].token is None:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _text(run: Sequence[Part]) -> str:
    return "".join(part.text for part in run)


def _drop(run: Sequence[Part], count: int) -> list[Part]:
    """Return a run of text without its first characters."""
    left = []
    for part in run:
        if count < len(part.text):
            left.append(Part(part.text[count:], part.origin))
        count = max(0, count - len(part.text))
    return left
