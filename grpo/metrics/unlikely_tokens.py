"""The least likely trained tokens, with their context: where a policy and its engine may disagree.

A token with an engine probability of 1e-6 was hardly sampled from that policy. A wrong template, an environment token
under the action mask, stale weights or a numeric fault shows here first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo.rollout.rows import Sample, get_branches

SHOWN = 3  # tokens of a rollout
CONTEXT = 24  # tokens before the unlikely one
AFTER = 6


def least_likely(
    sample: Sample, trainer: torch.Tensor | None, decode: Callable[[Sequence[int]], str]
) -> list[dict[str, Any]]:
    """Return the SHOWN sampled tokens of a rollout that the engine or the trainer found least likely, in this order.

    Args:
        sample: without the engine's log-probs the result is empty.
        trainer: the trainer's log-probs of the rollout's sampled tokens, ``[T]``, the earliest row first; None for one
            that is not trained on.

    Returns:
        ``position`` (in the sequence), ``before``, ``token``, ``after`` as text, ``engine`` and ``trainer`` (log-probs,
        nat; ``trainer`` may be None), and ``branch``: the index among the rollout's rows, earliest first.
    """
    rows = [*get_branches(sample), sample]
    lengths = [int(row.action_mask.bool().sum()) for row in rows]
    if sample.rollout_log_probs is None or (trainer is not None and len(trainer) != sum(lengths)):
        return []
    parts = [None] * len(rows) if trainer is None else trainer.split(lengths)
    found = []
    for branch, (row, ours) in enumerate(zip(rows, parts, strict=True)):
        assert row.rollout_log_probs is not None  # all rows of a rollout have them, or none
        tokens, sampled = row.sequences[0].tolist(), row.action_mask[0].nonzero().flatten()
        engine = row.rollout_log_probs[0][sampled]
        lowest = engine if ours is None else torch.minimum(engine, ours.to(engine))
        for at in lowest.argsort(stable=True)[:SHOWN].tolist():
            position = int(sampled[at]) + 1  # column t predicts token t + 1
            token = {
                "position": position,
                "before": decode(tokens[max(0, position - CONTEXT) : position]),
                "token": decode([tokens[position]]),
                "after": decode(tokens[position + 1 : position + 1 + AFTER]),
                "engine": float(engine[at]),
                "trainer": None if ours is None else float(ours[at]),
                "branch": branch,
            }
            found.append((float(lowest[at]), token))
    return [token for _, token in sorted(found, key=lambda pair: pair[0])[:SHOWN]]
