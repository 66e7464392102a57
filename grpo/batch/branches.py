"""Branches of a rollout on their way through OpenRLHF's trainer.

A rollout stays one item wherever OpenRLHF counts: in groups and baselines, in micro-batches, on ranks, in optimizer
steps and in the schedule. Its branches are more rows of the same micro-batch, with its advantage.
:mod:`grpo.update.loss` finds them by the number in ``info["sample"]``, and counts the rollout once, with the sampled
tokens of all its rows. Branching therefore changes no rollout's weight, no number of batches and no baseline. It adds
rows to a micro-batch (at most MAX_BRANCHES per rollout), which take memory.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch

from grpo.batch import recorded_routing
from grpo.rollout import continued
from grpo.rollout.engine import SAMPLED_BY
from grpo.rollout.invariant import check_experience, missing_log_prob
from grpo.stack.upstream.experience import Batch, BufferItem, Rows, Sample
from grpo.stack.upstream.trainer import SamplesGenerator

logger = logging.getLogger("openrlhf.grpo.branches")


def experience_of(generator: SamplesGenerator, response: dict[str, Any], **generate_kwargs: Any) -> Sample:
    """Return the ``Experience`` of a rollout, with the ``Experience`` of each branch in ``branches``.

    The trainer's tokens are compared with the engine's account (``response["engine"]``). A branch that differs is
    dropped. A rollout that differs gets no reward and so takes no part in the update. Both count in
    ``info["token_mismatch"]``.

    Args:
        generator: OpenRLHF's ``SamplesGenerator``.
        response: of an agent executor. Without ``engine`` it is OpenRLHF's own; then the only check is that each
            sampled token has a log-prob.
    """
    make = generator._process_response_into_experience
    if continued.LIMIT in response:  # the step's may be another one than that of its beginning
        generate_kwargs = {**generate_kwargs, "max_new_tokens": response[continued.LIMIT]}
    experience = make(response, **generate_kwargs)
    if continued.POLICIES in response:
        experience.group = response[continued.GROUP]
        policies = torch.from_numpy(response[continued.POLICIES])
        experience.policies = policies[1 : experience.sequences.shape[1]]
    experience.info.setdefault("token_mismatch", torch.zeros(1))
    experience.sampled_by = response.get(SAMPLED_BY)
    rows = [(make({**response, **branch}, **generate_kwargs), branch) for branch in response.get("branches", ())]
    sound = [row for row, branch in rows if _is_sound(row, branch, generator, experience)]
    if not _is_sound(experience, response, generator, experience) and experience.rewards is not None:
        experience.rewards = torch.full_like(experience.rewards, math.nan)
    if "branches" not in response:
        return experience
    experience.branches = sound
    masks = [experience.action_mask, *(row.action_mask for row in experience.branches)]
    # OpenRLHF counts only the last sample.
    experience.info["response_length"] = torch.tensor([int(sum(mask.sum() for mask in masks))])
    if response.get("is_empty"):  # its one token is a placeholder: the sample has no length
        experience.info |= {name: torch.full((1,), math.nan) for name in ("response_length", "total_length")}
    return experience


def _is_sound(row: Rows, response: dict[str, Any], generator: SamplesGenerator, rollout: Rows) -> bool:
    missing = recorded_routing.attach(row, response, generator.args.routing_replay)
    if "engine" in response:
        mismatch = check_experience(row, response["engine"], generator.tokenizer.decode)
    else:
        mismatch = missing_log_prob(row)
    mismatch = mismatch or missing
    if mismatch is None:
        return True
    logger.error("token mismatch: %s; this sample is not trained on", mismatch)
    rollout.info["token_mismatch"] = rollout.info["token_mismatch"] + 1
    return False


def with_branches(batches: list[Batch], rollouts: Sequence[Sample], pad_token_id: int) -> list[Batch]:
    """Return micro-batches for the forward passes, with the branches of their rollouts as more rows.

    Args:
        batches: ``Experience`` of B rollouts each, by ``index``, from ``split_rollout_samples``.
        rollouts: ``Experience`` of one rollout each.
    """
    if not any(of_sample(rollout) for rollout in rollouts):
        for batch in batches:
            recorded_routing.join(batch, [rollouts[index] for index in batch.index])
        return batches
    return [_with_rows([rollouts[index] for index in batch.index], pad_token_id) for batch in batches]


def _with_rows(rollouts: Sequence[Sample], pad_token_id: int) -> Batch:
    rows: list[Sample] = []
    for rollout in rollouts:
        for row in of_sample(rollout):
            row.index, row.rewards, row.scores, row.info = [], rollout.rewards, rollout.scores, dict(rollout.info)
            rows.append(row)
    joined = type(rollouts[0]).concat_experiences([*rollouts, *rows], pad_token_id)
    recorded_routing.join(joined, [*rollouts, *rows])
    joined.branch_counts = [len(of_sample(rollout)) for rollout in rollouts]
    return joined


def apart(batches: list[Batch]) -> list[Batch]:
    """Move the branches out of the rows into ``branches``, a list for each rollout, after the forward passes."""
    return [_apart(batch) if hasattr(batch, "branch_counts") else batch for batch in batches]


def _apart(batch: Batch) -> Batch:
    counts = batch.branch_counts
    rollouts = _rows(batch, 0, len(counts))
    rollouts.index = batch.index
    rollouts.branches, first = [], len(counts)
    for count in counts:
        rollouts.branches.append([_rows(batch, row, row + 1) for row in range(first, first + count)])
        first += count
    return rollouts


def _rows(batch: Batch, start: int, end: int) -> Batch:
    """Return rows of an ``Experience``; slices its tensors and its lists."""
    part = type(batch)()
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            value = {key: item[start:end] for key, item in value.items()}
        elif isinstance(value, torch.Tensor | list):
            value = value[start:end]
        setattr(part, field.name, value)
    recorded_routing.part(part, batch, start, end)
    return part


def give_advantages(batches: list[Batch]) -> list[Batch]:
    """Give each branch its rollout's logs, and its rollout's advantage on the branch's sampled tokens.

    A rollout has one advantage for all its tokens, read from its last sampled token. This needs an estimator with a
    group baseline and no KL penalty in the reward; with an environment, the launcher refuses the others.

    A rollout without a reward (``info["reward_missing"]``) and a degenerate one lose their action mask. With an
    advantage of zero, their tokens would still count in the KL, the entropy, the loss's token count, and the metrics.
    """
    for batch in batches:
        is_trained = _is_trained(batch)
        for number, branches in enumerate(of_batch(batch)):
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
    return 1 - left_out(batch).to(batch.action_mask.dtype)


def left_out(batch: Batch) -> torch.Tensor:
    """Return which rollouts take no part in the update, bool ``[B]``: no reward, degenerate, or no sampled token."""
    flags = [batch.info.get(name, torch.zeros(len(batch.action_mask))) for name in ("reward_missing", "degenerate")]
    is_empty = [not any(rows.action_mask[row].any() for rows, row in rollout) for rollout in samples_of(batch)]
    return (flags[0] > 0) | (flags[1] > 0) | torch.tensor(is_empty)


def _last(values: torch.Tensor, batch: Batch, number: int) -> torch.Tensor | float:
    """Return the value at the last sampled token of a rollout; 0 if it has none."""
    sampled = torch.nonzero(batch.action_mask[number])
    return values[int(sampled.max())] if len(sampled) else 0.0


def of_sample(rollout: Sample) -> Sequence[Sample]:
    """Return the branches of a rollout; () without an environment."""
    return getattr(rollout, "branches", ())


def of_batch(batch: Batch) -> Sequence[Sequence[Batch]]:
    """Return the branches of each rollout of a micro-batch of :func:`apart`."""
    return getattr(batch, "branches", [()] * len(batch.action_mask))


def samples_of(batch: Batch) -> Iterator[list[tuple[Batch, int]]]:
    """Yield the rows of each rollout, the earliest first: a micro-batch and the number of the row in it.

    Args:
        batch: of :func:`apart`.
    """
    for number, rows in enumerate(of_batch(batch)):
        yield [*((row, 0) for row in rows), (batch, number)]


def attach_items(items: list[BufferItem], batch: Batch, split: Callable[[Batch], list[BufferItem]]) -> list[BufferItem]:
    """Attach routings, and the items of the branches, to the replay buffer's items of a micro-batch, in place.

    Args:
        items: of the rollouts, in order.
        batch: the micro-batch of these items.
        split: makes items of an ``Experience``, without padding.
    """
    _attach_routing(items, batch)
    for item, branches in zip(items, of_batch(batch), strict=True):
        item.branches = [part for row in branches for part in _attach_routing(split(row), row)]
    return items


def _attach_routing(items: list[BufferItem], batch: Batch) -> list[BufferItem]:
    for number, item in enumerate(items):
        recorded_routing.part(item, batch, number, number + 1)
    return items


def joined(make: Callable[..., Batch], items: Sequence[BufferItem], *options: Any) -> Batch:
    """Return a training micro-batch: its rollouts, then their branches.

    Its ``info`` holds only the rollouts, so that a mean over it counts each rollout once. Only ``sample`` keeps every
    row, to find the row's rollout.

    Args:
        make: OpenRLHF's ``make_experience_batch``.
    """
    rows = [*items, *(row for item in items for row in getattr(item, "branches", ()))]
    batch = make(rows, *options)
    recorded_routing.join(batch, rows)
    batch.info = {key: values if key == "sample" else values[: len(items)] for key, values in batch.info.items()}
    return batch
