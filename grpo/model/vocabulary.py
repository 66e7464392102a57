"""Unallocated rows of a model's vocabulary, which correspond to no token: 1069 of gpt-oss's 201,088.

Nothing trains a policy not to sample them. A sampled token with a negative advantage raises the logits of all other
rows, including these. A loss whose token advantages have a negative mean thus feeds them until one is sampled, and no
tokenizer can decode it. Both softmaxes, the engine's and the trainer's, therefore exclude these rows.
"""

import torch

from grpo.stack.upstream.tokenizer import Tokenizer


def allocated(tokenizer: Tokenizer) -> int:
    """Return the number of allocated rows: the largest token id plus one. Holes below it (reserved ids) count."""
    return max(tokenizer.get_vocab().values()) + 1


def mask_(logits: torch.Tensor, rows: int) -> torch.Tensor:
    """Set the logits of all rows from ``rows`` on to -inf in place, for a sampler that needs its whole vocabulary.

    Args:
        logits: ``[N, V]``.
    """
    logits[..., rows:] = -torch.inf
    return logits
