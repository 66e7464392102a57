"""The text of sampled tokens, as rewards, judges and people read it: tokens make its structure, spelling does not."""

import re
from collections.abc import Sequence
from typing import Any

from reward.answers import MARKER

BREAK = "\u200b"  # a zero-width space


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of tokens, added tokens such as `<|channel|>` by their names.

    A model can spell such a name with ordinary tokens, which open no message. There a BREAK after the first character
    keeps whoever reads the text from taking it for the token.

    Args:
        tokens: [L] ids.
    """
    names, spelled = _added(tokenizer)
    parts: list[str] = []
    start = 0
    for place, token in enumerate([*tokens, None]):
        if token is not None and token not in names:
            continue
        if place > start:
            run = tokenizer.decode(list(tokens[start:place]), skip_special_tokens=False)
            parts.append(spelled.sub(lambda name: f"{name[0][0]}{BREAK}{name[0][1:]}", run))
        if token is not None:
            parts.append(names[token])
        start = place + 1
    return "".join(parts)


def _added(tokenizer: Any) -> tuple[dict[int, str], re.Pattern[str]]:
    """Return the added tokens by their ids, and what finds one of their names; runs of blanks are nobody's marker.

    Harmony's markers are the grader's, whatever the model's template is: without such tokens they are only spelled.
    """
    names = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()}
    markers = sorted((name for name in names.values() if len(name.strip()) > 1), key=len, reverse=True)
    return names, re.compile("|".join([*map(re.escape, markers), MARKER.pattern]))


FINAL_HEADER = "<|channel|>final<|message|>"


def generated(tokenizer: Any, tokens: list[int], is_truncated: bool) -> dict[str, Any]:
    """Return what the tokens of a response add to its record (see :mod:`grpo.run.records`)."""
    return {
        "response_length": len(tokens),
        "answer_length": answer_length(tokens, tokenizer.encode(FINAL_HEADER, add_special_tokens=False)),
        "truncated": float(is_truncated),
        "response": text_of(tokenizer, tokens),
    }


def answer_length(tokens: Sequence[int], header: Sequence[int]) -> int | None:
    """Return how many tokens stand after the last occurrence of a header, None where there is none.

    Args:
        header: a sequence of token ids, for instance those of FINAL_HEADER.
    """
    for start in range(len(tokens) - len(header), -1, -1):
        if tokens[start] == header[0] and list(tokens[start : start + len(header)]) == list(header):
            return len(tokens) - start - len(header)
    return None
