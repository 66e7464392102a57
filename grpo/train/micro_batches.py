"""Micro-batches: rollouts with their branches as more rows, on their way to the passes and to the loss.

A rollout stays one item wherever it is counted: in groups and baselines, in micro-batches, on ranks, in optimizer steps
and in the schedule. Its branches are more rows of the same micro-batch, with its advantage. :attr:`Batch.index` says
which rows are of one rollout; :mod:`grpo.train.loss` counts it once, with the sampled tokens of all its rows. Branching
therefore changes no rollout's weight, no number of batches and no baseline. It adds rows to a micro-batch (at most
--max_branches per rollout), which take memory.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from grpo.rollout.rows import Batch, Sample, get_branches, group_rows, join, part


def build(rollouts: Sequence[Sample], size: int, pad_token_id: int) -> list[Batch]:
    """Return the rollouts of a step as micro-batches of `size`, each followed by their branches.

    Args:
        rollouts: of one row each, in the order of their groups; they and their branches get their ``index``.
    """
    for number, rollout in enumerate(rollouts):
        for row in (rollout, *get_branches(rollout)):
            row.index = [number]
    parts = [rollouts[at : at + size] for at in range(0, len(rollouts), size)]
    return [join(part, pad_token_id, [row for rollout in part for row in get_branches(rollout)]) for part in parts]


def split_by_rollout(batch: Batch) -> list[list[Batch]]:
    """Return the rows of each rollout of a micro-batch without padding: the rollout's own, then its branches."""
    rollouts = []
    for number, rows in enumerate(group_rows(batch)):
        of_rollout = slice(number, number + 1)
        # group_rows names the rollout's own row last; here it comes first, since join_rollouts puts branches at the end
        rollouts.append([_strip(part(batch, slice(row, row + 1), of_rollout)) for row in (rows[-1], *rows[:-1])])
    return rollouts


def _strip(row: Batch) -> Batch:
    """Remove the padding of a row, in place."""
    length, padded = int(row.attention_mask.sum()), row.sequences.shape[1]
    for name, value in vars(row).items():
        if isinstance(value, torch.Tensor) and value.dim() == 2:  # [1, S], or [1, A] with A = S - 1
            setattr(row, name, value[:, : length - padded + value.shape[1]])
    return row


def join_rollouts(rollouts: Sequence[Sequence[Batch]]) -> Batch:
    """Return rollouts of :func:`split_by_rollout` as a micro-batch. Masks hide the padding, so any id will do."""
    return join([rows[0] for rows in rollouts], 0, [row for rows in rollouts for row in rows[1:]])


def number_rollouts(micro_batch: Batch) -> torch.Tensor:
    """Return the rollout of each row of a micro-batch, numbered from 0, long ``[B]``."""
    return torch.tensor(micro_batch.index).unique(return_inverse=True)[1]


def group_by_optimizer_step(micro_batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield lists of `size` micro-batches, each the optimizer batch of this rank."""
    batch: list[Batch] = []
    for micro_batch in micro_batches:
        batch.append(micro_batch)
        if len(batch) == size:
            yield batch
            batch = []  # not cleared: whoever got it empties it
    assert not batch, "the launcher refuses rollouts of a step that are no multiple of --train_batch_size"
