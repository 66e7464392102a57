"""Rows of a model's vocabulary that stand for no token: 1069 of gpt-oss's 201,088.

Nothing ever tells a policy not to sample them. Where a token was sampled with a negative advantage, the gradient raises
the logits of all other rows, these included; on balance a loss whose token advantages have a negative mean feeds them,
until one is sampled, which no tokenizer can decode. So both softmaxes, the engine's and the trainer's, leave them out.
"""

from typing import Any

import torch

CHUNK = 256  # positions: all at once, the exponentials of 4096 tokens would take 3.3 GB


def allocated(tokenizer: Any) -> int:
    """Return how many rows stand for tokens: one more than the largest id. Holes below it, as reserved ids, count."""
    return max(tokenizer.get_vocab().values()) + 1


def of_tokens(output: Any, rows: int | None, temperature: float) -> torch.Tensor:
    """Return the logits of rows that stand for tokens, a view ``[B, S, rows]``; all where ``rows`` is None.

    In a training pass ``output.unallocated`` is set to what :func:`unallocated_mass` finds, for the metrics.

    A softmax over them is that over the whole vocabulary with -inf elsewhere, without the NaN of 0 * -inf in an
    entropy, and without the copy.

    Args:
        output: of the model, with ``logits`` ``[B, S, V]``.
        temperature: that of the sampling.
    """
    logits = output["logits"]
    if torch.is_grad_enabled():
        output.unallocated = unallocated_mass(logits, logits.shape[-1] if rows is None else rows, temperature)
    return logits if rows is None else logits[..., :rows]


def mask_(logits: torch.Tensor, rows: int) -> torch.Tensor:
    """Set the logits of all rows from ``rows`` on to -inf in place, where a sampler wants its whole vocabulary.

    Args:
        logits: ``[N, V]``.
    """
    logits[..., rows:] = -torch.inf
    return logits


@torch.no_grad()
def unallocated_mass(logits: torch.Tensor, rows: int, temperature: float = 1.0) -> torch.Tensor:
    """Return the probability of all rows that stand for no token, before they are masked: fp32 ``[B, S]``.

    Args:
        logits: ``[B, S, V]`` as they come out of the model.
        rows: from :func:`allocated`.
        temperature: that of the sampling.
    """
    if rows >= logits.shape[-1]:
        return logits.new_zeros(logits.shape[:-1], dtype=torch.float32)
    found = []
    for chunk in logits.split(CHUNK, dim=1):
        scaled = chunk.float() / temperature
        found.append((scaled[..., rows:].logsumexp(-1) - scaled.logsumexp(-1)).exp())
    return torch.cat(found, dim=1)
