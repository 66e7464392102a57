"""The least likely trained tokens, with their context: where a policy and its engine may disagree.

A token with an engine probability of 1e-6 was hardly sampled from that policy. A wrong template, an environment token
under the action mask, stale weights or a numeric fault shows here first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

CONTEXT = 24  # tokens before the unlikely one
AFTER = 6


def least_likely(
    sequences: torch.Tensor,
    action_mask: torch.Tensor,
    engine: torch.Tensor,
    trainer: torch.Tensor | None,
    decode: Callable[[Sequence[int]], str],
    count: int,
) -> list[dict[str, Any]]:
    """Return the trained tokens of a batch that the engine or the trainer found least likely, least likely first.

    Args:
        sequences: int64 ``[B, S]``.
        action_mask: ``[B, S - 1]``, which of ``sequences[:, 1:]`` are trained on.
        engine: the engine's log-probs of ``sequences[:, 1:]``, nat, ``[B, S - 1]``.
        trainer: the same from the trainer; None if it made no pass of its own.

    Returns:
        ``sample`` (row), ``position`` (in the sequence), ``before``, ``token``, ``after`` as text, ``engine`` and
        ``trainer`` (log-probs; ``trainer`` may be None).
    """
    mask = action_mask.bool()
    lowest = engine if trainer is None else torch.minimum(engine, trainer)
    ranked = lowest.float().masked_fill(~mask, float("inf")).flatten()
    order = ranked.argsort(stable=True)[: min(count, int(mask.sum()))]
    listed = []
    for flat_index in order.tolist():
        row, at = divmod(flat_index, mask.shape[1])
        tokens, position = sequences[row].tolist(), at + 1
        listed.append(
            {
                "sample": row,
                "position": position,
                "before": decode(tokens[max(0, position - CONTEXT) : position]),
                "token": decode([tokens[position]]),
                "after": decode(tokens[position + 1 : position + 1 + AFTER]),
                "engine": float(engine[row, at]),
                "trainer": None if trainer is None else float(trainer[row, at]),
            }
        )
    return listed
