"""Branches of a rollout on their way to the loss.

A rollout stays one item wherever it is counted: in groups and baselines, in micro-batches, on ranks, in optimizer steps
and in the schedule. Its branches are more rows of the same micro-batch, with its advantage.
:mod:`grpo.train.loss` finds them by the number in ``info["sample"]``, and counts the rollout once, with the sampled
tokens of all its rows. Branching therefore changes no rollout's weight, no number of batches and no baseline. It adds
rows to a micro-batch (at most MAX_BRANCHES per rollout), which take memory.
"""

from collections.abc import Sequence

import torch

from grpo.rollout.rows import Batch, Sample, get_batch_branches, get_branches, group_rows, join, part


def build(rollouts: Sequence[Sample], size: int, pad_token_id: int) -> list[Batch]:
    """Return the rollouts of a step as micro-batches of `size`, with their branches as more rows for the passes.

    Args:
        rollouts: of one row each, in the order of their groups; they get their ``index``.
    """
    for number, rollout in enumerate(rollouts):
        rollout.index = [number]
    return [_build_batch(rollouts[at : at + size], pad_token_id) for at in range(0, len(rollouts), size)]


def _build_batch(rollouts: Sequence[Sample], pad_token_id: int) -> Batch:
    rows: list[Sample] = []
    for rollout in rollouts:
        for row in get_branches(rollout):
            row.index, row.rewards, row.scores, row.info = [], rollout.rewards, rollout.scores, dict(rollout.info)
            rows.append(row)
    joined = join([*rollouts, *rows], pad_token_id)
    if rows:
        joined.branch_counts = [len(get_branches(rollout)) for rollout in rollouts]
    return joined


def separate_branches(batches: list[Batch]) -> list[Batch]:
    """Move the branches out of the rows into ``branches``, a list for each rollout, after the forward passes."""
    return [_separate_branches(batch) if hasattr(batch, "branch_counts") else batch for batch in batches]


def _separate_branches(batch: Batch) -> Batch:
    counts = batch.branch_counts
    rollouts = part(batch, 0, len(counts))
    rollouts.index = batch.index
    rollouts.branches, first = [], len(counts)
    for count in counts:
        rollouts.branches.append([part(batch, row, row + 1) for row in range(first, first + count)])
        first += count
    return rollouts


def give_advantages(batches: list[Batch]) -> list[Batch]:
    """Give each branch its rollout's logs, and its rollout's advantage on the branch's sampled tokens.

    A rollout has one advantage for all its tokens, read from its last sampled token. This needs an estimator with a
    group baseline and no KL penalty in the reward; with an environment, the launcher refuses the others.

    A rollout without a reward (``info["reward_missing"]``) loses its action mask. With an
    advantage of zero, their tokens would still count in the KL, the entropy, the loss's token count, and the metrics.
    """
    for batch in batches:
        is_trained = _is_trained(batch)
        for number, branches in enumerate(get_batch_branches(batch)):
            if not branches:
                continue
            advantage, returned = (_last(values[number], batch, number) for values in (batch.advantages, batch.returns))
            for row in branches:
                mask = row.action_mask = row.action_mask * is_trained[number]
                row.advantages, row.returns = advantage * mask, returned * mask
                row.kl = None
                row.info = {key: value[number : number + 1] for key, value in batch.info.items()}
        batch.action_mask = batch.action_mask * is_trained[:, None]
        batch.advantages = torch.where(is_trained[:, None] > 0, batch.advantages, 0.0)
    return batches


def _is_trained(batch: Batch) -> torch.Tensor:
    """Return 1 for each rollout that is trained on and 0 for the others, ``[B]``, of the mask's dtype."""
    return 1 - find_left_out(batch).to(batch.action_mask.dtype)


def find_left_out(batch: Batch) -> torch.Tensor:
    """Return which rollouts take no part in the update, bool ``[B]``: no reward, or no sampled token."""
    missing = batch.info.get("reward_missing", torch.zeros(len(batch.action_mask)))
    is_empty = [not any(rows.action_mask[row].any() for rows, row in rollout) for rollout in group_rows(batch)]
    return (missing > 0) | torch.tensor(is_empty)


def _last(values: torch.Tensor, batch: Batch, number: int) -> torch.Tensor | float:
    """Return the value at the last sampled token of a rollout; 0 if it has none."""
    sampled = torch.nonzero(batch.action_mask[number])
    return values[int(sampled.max())] if len(sampled) else 0.0


def split_rollouts(batch: Batch) -> list[Batch]:
    """Return the rollouts of a micro-batch one by one, without padding and with their branches.

    Args:
        batch: of :func:`separate_branches`.
    """
    rows = []
    for number, branches in enumerate(get_batch_branches(batch)):
        row = _remove_padding(part(batch, number, number + 1))
        row.branches = [[_remove_padding(branch) for branch in branches]]
        rows.append(row)
    return rows


def _remove_padding(row: Batch) -> Batch:
    length, padded = int(row.attention_mask.sum()), row.sequences.shape[1]
    for name, value in vars(row).items():
        if isinstance(value, torch.Tensor) and value.dim() == 2:  # [1, S], or [1, A] with A = S - 1
            setattr(row, name, value[:, : length - padded + value.shape[1]])
    return row


def join_rollouts(rollouts: Sequence[Batch]) -> Batch:
    """Return rollouts of :func:`split_rollouts` as a micro-batch of the update: the rollouts, then their branches.

    Its ``info`` holds only the rollouts, so that a mean over it counts each rollout once. Only ``sample`` keeps every
    row, to find the row's rollout.
    """
    batch = join([*rollouts, *(row for rollout in rollouts for row in get_batch_branches(rollout)[0])], 0)
    batch.info = {key: values if key == "sample" else values[: len(rollouts)] for key, values in batch.info.items()}
    return batch
