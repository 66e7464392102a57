"""Rollouts that count in their group and not in the loss: those cut by the limit.

They are marked after the advantages, so that a group's mean is that of all its rollouts. A rank hides their tokens from
the loss and its denominator, from KL and entropy terms, and from the metrics of the update. The controller's own
metrics still see them.
"""

from collections.abc import Sequence

import torch

from grpo.batch.branches import find_left_out, get_batch_branches
from grpo.rollout.rows import Batch
from grpo.stack.upstream.arguments import Arguments


def mark(batches: Sequence[Batch], args: Arguments) -> None:
    """Give each rollout ``info["masked_rollouts"]``, 1 or 0; does nothing without MASK_TRUNCATED.

    A rollout that takes no part in the update anyway is not marked.

    Args:
        batches: the micro-batches of a step: ``info["truncated"]``, ``[B]``.
    """
    for batch in batches if args.mask_truncated else ():
        batch.info["masked_rollouts"] = ((batch.info["truncated"] > 0) & ~find_left_out(batch)).float()


def mask_rollouts(rows: Sequence[Batch]) -> None:
    """Remove the tokens of marked rollouts from the action masks, in place.

    Args:
        rows: of :func:`grpo.batch.branches.split_rollouts`, one rollout each, with its branches.
    """
    for rollout in rows:
        if "masked_rollouts" in rollout.info and rollout.info["masked_rollouts"] > 0:
            for row in (rollout, *get_batch_branches(rollout)[0]):
                row.action_mask = torch.zeros_like(row.action_mask)
