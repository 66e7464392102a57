"""Rows of a model's vocabulary that no text uses: 1069 unallocated ones of gpt-oss's 201,088, and 11 reserved ids.

Nothing trains a policy not to sample them. A sampled token with a negative advantage raises the logits of all other
rows, including these. A loss whose token advantages have a negative mean thus feeds them until one is sampled, and no
tokenizer can decode it. Both softmaxes, the engine's and the trainer's, therefore exclude these rows.
"""

import functools
import re
from typing import NamedTuple

import torch

from grpo.stack.upstream import Tokenizer

_RESERVED = re.compile(r"<\|reserved_\d+\|>")  # gpt-oss's names for ids without a meaning


class Allocated(NamedTuple):
    """The rows that stand for tokens: the first ``rows``, except those in ``reserved``."""

    rows: int
    reserved: tuple[int, ...] = ()


def find_allocated(tokenizer: Tokenizer) -> Allocated:
    """Return the rows that a tokenizer has tokens for. Ids without a name are reserved, too."""
    names = {token: name for name, token in tokenizer.get_vocab().items()}
    rows = max(names) + 1
    reserved = (token for token in range(rows) if token not in names or _RESERVED.fullmatch(names[token]))
    return Allocated(rows, tuple(reserved))


def mask_(logits: torch.Tensor, kept: Allocated) -> torch.Tensor:
    """Set the logits of all other rows to -inf in place, for a sampler that needs its whole vocabulary.

    Args:
        logits: ``[N, V]``.
    """
    logits[..., kept.rows :] = -torch.inf
    return logits.index_fill_(-1, _indices(kept.reserved, logits.device), -torch.inf)


@functools.cache
def _indices(rows: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return row numbers on a device; each pass of the engine would copy them otherwise."""
    return torch.tensor(rows, dtype=torch.long, device=device)
