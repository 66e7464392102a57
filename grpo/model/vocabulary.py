"""Unallocated rows of a model's vocabulary, which correspond to no token: 1069 of gpt-oss's 201,088.

Nothing trains a policy not to sample them. A sampled token with a negative advantage raises the logits of all other
rows, including these. A loss whose token advantages have a negative mean thus feeds them until one is sampled, and no
tokenizer can decode it. Both softmaxes, the engine's and the trainer's, therefore exclude these rows.
"""

from typing import Any

import torch

CHUNK = 256  # positions: all at once, the exponentials of 4096 tokens would take 3.3 GB


def allocated(tokenizer: Any) -> int:
    """Return the number of allocated rows: the largest token id plus one. Holes below it (reserved ids) count."""
    return max(tokenizer.get_vocab().values()) + 1


def of_tokens(output: Any, rows: int | None, temperature: float) -> torch.Tensor:
    """Return the logits of allocated rows, a view ``[B, S, rows]``; of all rows if ``rows`` is None.

    In a training pass it sets ``output.unallocated`` to the result of :func:`unallocated_mass`, for the metrics.

    A softmax over the view equals one over the whole vocabulary with -inf elsewhere. It avoids the copy, and the NaN of
    0 * -inf in an entropy.

    Args:
        output: the model's output, with ``logits`` ``[B, S, V]``.
        temperature: the sampling temperature.
    """
    logits = output["logits"]
    if torch.is_grad_enabled():
        output.unallocated = unallocated_mass(logits, logits.shape[-1] if rows is None else rows, temperature)
    return logits if rows is None else logits[..., :rows]


def mask_(logits: torch.Tensor, rows: int) -> torch.Tensor:
    """Set the logits of all rows from ``rows`` on to -inf in place, for a sampler that needs its whole vocabulary.

    Args:
        logits: ``[N, V]``.
    """
    logits[..., rows:] = -torch.inf
    return logits


@torch.no_grad()
def unallocated_mass(logits: torch.Tensor, rows: int, temperature: float = 1.0) -> torch.Tensor:
    """Return the total probability of the unallocated rows before they are masked: fp32 ``[B, S]``.

    Args:
        logits: ``[B, S, V]`` as the model returns them.
        rows: from :func:`allocated`.
        temperature: the sampling temperature.
    """
    if rows >= logits.shape[-1]:
        return logits.new_zeros(logits.shape[:-1], dtype=torch.float32)
    found = []
    for chunk in logits.split(CHUNK, dim=1):
        scaled = chunk.float() / temperature
        found.append((scaled[..., rows:].logsumexp(-1) - scaled.logsumexp(-1)).exp())
    return torch.cat(found, dim=1)
