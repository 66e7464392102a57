"""Text and tokens, both ways. Only tokens make markers; spelling does not.

In a message, the name of a special token stays text, so it cannot end a turn. In the text for rewards, judges and
people, a spelled name is broken up.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo.stack.upstream import FastTokenizer, Tokenizer
from reward.answers import MARKER

BREAK = "\u200b"  # a zero-width space
FINAL_HEADER = "<|channel|>final<|message|>"


class Codec:
    """A tokenizer that distinguishes text from special tokens.

    Args:
        tokenizer: a fast tokenizer of transformers. All its added tokens count as special.

    Attributes:
        added: the ids of the special tokens by their names.
        special: matches these names.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self.tokenizer = tokenizer
        self.added: dict[str, int] = tokenizer.get_added_vocab()
        longest_first = sorted(self.added, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._encode = functools.lru_cache(1024)(self._encode_run)  # each turn's prompt repeats those before it

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of text, none of them special."""
        return list(self._encode(text))

    def encode(self, text: str, read: Callable[[str], str] = str) -> list[int]:
        """Return the tokens of text in which the names of special tokens stand for these tokens.

        Args:
            read: returns what a run of text between such names stands for; by default itself.
        """
        runs = ([special] if special is not None else self.encode_text(read(run)) for run, special in self.split(text))
        return [token for tokens in runs for token in tokens]

    def split(self, text: str) -> list[tuple[str, int | None]]:
        """Return the special tokens that text names, each with its id, and the runs of text between them, with None."""
        runs: list[tuple[str, int | None]] = []
        at = 0
        for match in self.special.finditer(text):
            runs += [(text[at : match.start()], None), (match[0], self.added[match[0]])]
            at = match.end()
        return [run for run in [*runs, (text[at:], None)] if run[0]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones by their names."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _encode_run(self, text: str) -> tuple[int, ...]:
        if not self.special.search(text):
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        backend = self.tokenizer.backend_tokenizer
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        pieces = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer is not None else [(text, None)]
        return tuple(token.id for piece, _ in pieces for token in backend.model.tokenize(piece))


def decode_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of tokens, added tokens such as `<|channel|>` by their names.

    A model or a problem can spell such a name with ordinary tokens, which open no message. A BREAK after the first
    character then prevents readers from taking it for the token.
    """
    names, spelled = _list_added(tokenizer)
    parts: list[str] = []
    for is_added, run in itertools.groupby(tokens, names.__contains__):
        if is_added:
            parts += (names[token] for token in run)
        else:
            text = tokenizer.decode(list(run), skip_special_tokens=False)
            parts.append(spelled.sub(lambda name: f"{name[0][0]}{BREAK}{name[0][1:]}", text))
    return "".join(parts)


def encode_text(tokenizer: FastTokenizer, text: str) -> list[int]:
    """Return the tokens of a prompt's text: the inverse of :func:`decode_tokens`."""
    _, spelled = _list_added(tokenizer)
    return Codec(tokenizer).encode(
        text, lambda run: spelled.sub(lambda name: name[0][0] + name[0][1:].removeprefix(BREAK), run)
    )


def _list_added(tokenizer: Tokenizer) -> tuple[dict[int, str], re.Pattern[str]]:
    """Return the added tokens by their ids, and a pattern for their names; runs of blanks are no markers.

    The pattern also matches a name that has a BREAK already: it gets one more, which :func:`encode_text` takes away.
    The grader reads harmony's markers, whatever the model's template. Without such tokens, a model only spells them.
    """
    names = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()}
    markers = sorted((name for name in names.values() if len(name.strip()) > 1), key=len, reverse=True)
    patterns = [f"{re.escape(name[0])}{BREAK}*{re.escape(name[1:])}" for name in markers]
    return names, re.compile("|".join([*patterns, f"<{BREAK}*{MARKER.pattern[1:]}"]))


def make_record_fields(tokenizer: Tokenizer, tokens: list[int], is_truncated: bool) -> dict[str, Any]:
    """Return the fields that a response's tokens add to its record (see :mod:`grpo.run.records`)."""
    return {
        "response_length": len(tokens),
        "answer_length": answer_length(tokens, tokenizer.encode(FINAL_HEADER, add_special_tokens=False)),
        "truncated": float(is_truncated),
        "response": decode_tokens(tokenizer, tokens),
    }


def answer_length(tokens: Sequence[int], header: Sequence[int]) -> int | None:
    """Return the number of tokens after the last occurrence of a header; None if it does not occur.

    Args:
        header: token ids, for instance of FINAL_HEADER.
    """
    for start in range(len(tokens) - len(header), -1, -1):
        if tokens[start] == header[0] and list(tokens[start : start + len(header)]) == list(header):
            return len(tokens) - start - len(header)
    return None
