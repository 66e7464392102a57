"""Text to tokens and back. In a message, the name of a special token stays text, so it cannot end a turn."""

import functools
import re
from collections.abc import Sequence

from grpo.stack.upstream.tokenizer import FastTokenizer


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

    def encode(self, text: str) -> list[int]:
        """Return the tokens of text in which the names of special tokens stand for these tokens."""
        return [
            token
            for run, special in self.split(text)
            for token in ([special] if special is not None else self.encode_text(run))
        ]

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
