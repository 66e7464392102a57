"""The text of tokens for rewards, judges and people. Only tokens make markers; spelling does not."""

import re
from collections.abc import Sequence
from typing import Any

from grpo.rollout.codec import Codec
from grpo.stack.upstream.tokenizer import FastTokenizer, Tokenizer
from reward.answers import MARKER

BREAK = "\u200b"  # a zero-width space


def decode_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of tokens, added tokens such as `<|channel|>` by their names.

    A model or a problem can spell such a name with ordinary tokens, which open no message. A BREAK after the first
    character then prevents readers from taking it for the token.

    Args:
        tokens: [L] ids.
    """
    names, spelled = _list_added(tokenizer)
    parts: list[str] = []
    start = 0
    for index, token in enumerate([*tokens, None]):
        if token is not None and token not in names:
            continue
        if index > start:
            run = tokenizer.decode(list(tokens[start:index]), skip_special_tokens=False)
            parts.append(spelled.sub(lambda name: f"{name[0][0]}{BREAK}{name[0][1:]}", run))
        if token is not None:
            parts.append(names[token])
        start = index + 1
    return "".join(parts)


def encode_text(tokenizer: FastTokenizer, text: str) -> list[int]:
    """Return the tokens of a prompt's text: the inverse of :func:`decode_tokens`."""
    codec, (_, spelled) = Codec(tokenizer), _list_added(tokenizer)

    def restore(run: str) -> str:
        return spelled.sub(lambda name: name[0][0] + name[0][1:].removeprefix(BREAK), run)

    return [
        token
        for run, special in codec.split(text)
        for token in ([special] if special is not None else codec.encode_text(restore(run)))
    ]


def _list_added(tokenizer: Tokenizer) -> tuple[dict[int, str], re.Pattern[str]]:
    """Return the added tokens by their ids, and a pattern for their names; runs of blanks are no markers.

    The pattern also matches a name that has a BREAK already: it gets one more, which :func:`encode_text` takes away.
    The grader reads harmony's markers, whatever the model's template. Without such tokens, a model only spells them.
    """
    names = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()}
    markers = sorted((name for name in names.values() if len(name.strip()) > 1), key=len, reverse=True)
    patterns = [f"{re.escape(name[0])}{BREAK}*{re.escape(name[1:])}" for name in markers]
    return names, re.compile("|".join([*patterns, f"<{BREAK}*{MARKER.pattern[1:]}"]))


FINAL_HEADER = "<|channel|>final<|message|>"


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
