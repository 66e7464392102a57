"""Rollouts as the rows that a trainer computes on, from the engines' responses to the loss.

B rows, S tokens of a row with its prompt, and A = S - 1 positions that predict a token: position t predicts token
t + 1. Rows are padded on the right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch.nn.functional import pad


@dataclass(eq=False, repr=False)  # tensors are not compared, and some attributes come later
class Rows:
    """What rows have at every stage.

    Attributes:
        sequences: int64 ``[B, S]``.
        attention_mask: int64 ``[B, S]``.
        action_mask: int64 ``[B, A]``, 1 for the tokens that the policy sampled.
        rollout_log_probs: float32 ``[B, A]``, by the engine; None if it reported none.
        prompts, labels: one for each rollout.
        rewards, scores: float32 ``[B]``; NaN if missing.
        info: logs by name, ``[B]`` each. Ours are the limit of lengths (``length_limit``), checks
            (``token_mismatch``), missing rewards (``reward_missing``), penalties (``length_penalty``) and the number of
            the rollout (``sample``).
        index: the number of each rollout in the step; [] for branches.
        routing: for each row, the engine's choice of experts, see :mod:`grpo.batch.recorded_routing`. Only with
            ROUTING_REPLAY.
    """

    sequences: torch.Tensor
    attention_mask: torch.Tensor
    action_mask: torch.Tensor
    rollout_log_probs: torch.Tensor | None
    prompts: list[str]
    labels: list[Any]
    rewards: torch.Tensor
    scores: torch.Tensor
    info: dict[str, torch.Tensor]
    index: list[int] = field(default_factory=list)
    routing: list[torch.Tensor] | None = None

    def to_device(self, device: str) -> Self:
        """Move the tensors to a device, and return the rows."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(device))
        self.info = {name: value.to(device) for name, value in self.info.items()}
        return self

    def pin_memory(self) -> Self:
        """Pin the memory of the tensors, as torch's ``DataLoader`` asks for, and return the rows."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.pin_memory())
        return self


@dataclass(eq=False, repr=False)  # tensors are not compared, and some attributes come later
class Sample(Rows):
    """One rollout, B = 1, from :func:`grpo.batch.rollouts.build_rollout`.

    Attributes:
        sampled_by: the id of the engine's Ray actor.
        branches: one row for each branch; rollouts without an environment have none. Read it with
            :func:`grpo.batch.branches.get_branches`.
        engine_routing: as ``routing``, of a rollout whose routing only the parity gate reads, without a list around it.
        missing: names of the numbers that the rollout lacked, from :func:`grpo.batch.rewards.complete`.
        details: what is known about the rollout after the update, from :mod:`grpo.metrics.step_metrics`.
    """

    sampled_by: str | None = None
    branches: "list[Sample]" = field(init=False)
    engine_routing: torch.Tensor = field(init=False)
    missing: set[str] = field(init=False)
    details: dict[str, Any] = field(init=False)


@dataclass(eq=False, repr=False)  # tensors are not compared, and some attributes come later
class Batch(Rows):
    """A micro-batch of rollouts, from :func:`grpo.batch.branches.micro_batches` to the loss, or one of its rows.

    Attributes:
        action_log_probs: float32 ``[B, A]``, see :func:`grpo.update.passes.add_log_probs`; None where the current
            log-probs are used, see :func:`grpo.update.passes.set_old_log_probs`.
        base_action_log_probs: the reference's, float32 ``[B, A]``; None without a KL loss.
        kl: float32 ``[B, A]``, actor minus reference, for the reward; None once the advantages have it.
        advantages, returns: float32 ``[B, A]``, once :func:`grpo.batch.advantages.compute` has computed them.
        branch_counts: branches of each rollout, which are rows after the rollouts, for the forward passes.
        branches: for each rollout, its branches of one row each, from :func:`grpo.batch.branches.separate_branches`.
            Read it with :func:`grpo.batch.branches.get_batch_branches`.
        replay: the :class:`grpo.model.routing.Replay` of this micro-batch's passes in the update, None without one.
    """

    action_log_probs: torch.Tensor | None = None
    base_action_log_probs: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    advantages: torch.Tensor = field(init=False)
    returns: torch.Tensor = field(init=False)
    branch_counts: list[int] = field(init=False)
    branches: "list[list[Batch]]" = field(init=False)
    replay: Any = field(init=False)


_TENSORS = ("attention_mask", "action_mask", "rollout_log_probs", "rewards", "scores")
_OF_BATCHES = ("action_log_probs", "base_action_log_probs", "kl", "advantages", "returns")


def join(rows: Sequence[Rows], pad_token_id: int) -> Batch:
    """Return the rows of several as one micro-batch, padded.

    Args:
        pad_token_id: of ``sequences``; other tensors are padded with 0.
    """
    names = [name for name in (*_TENSORS, *_OF_BATCHES) if getattr(rows[0], name, None) is not None]
    joined: dict[str, Any] = {name: _join([getattr(row, name) for row in rows], 0) for name in names}
    routings = [row.routing for row in rows if row.routing is not None]
    batch = Batch(
        sequences=_join([row.sequences for row in rows], pad_token_id),
        prompts=[prompt for row in rows for prompt in row.prompts],
        labels=[label for row in rows for label in row.labels],
        info={name: torch.cat([row.info[name] for row in rows if name in row.info]) for name in rows[0].info},
        index=[number for row in rows for number in row.index],
        routing=[one for routing in routings for one in routing] if len(routings) == len(rows) else None,
        **{"rollout_log_probs": None} | {name: joined[name] for name in _TENSORS if name in joined},
    )
    for name in joined.keys() - set(_TENSORS):
        setattr(batch, name, joined[name])
    return batch


def _join(tensors: Sequence[torch.Tensor], value: int) -> torch.Tensor:
    longest = max(tensor.shape[-1] for tensor in tensors)
    if tensors[0].dim() == 1:
        return torch.cat(list(tensors))
    return torch.cat([pad(tensor, (0, longest - tensor.shape[-1]), value=value) for tensor in tensors])


def part(batch: Batch, start: int, end: int) -> Batch:
    """Return some rows of a micro-batch, without its branches."""
    values = {each.name: getattr(batch, each.name) for each in fields(Batch) if hasattr(batch, each.name)}
    rows = object.__new__(Batch)
    for name, value in values.items():
        if name in ("branches", "branch_counts", "replay"):
            continue
        if isinstance(value, dict):
            value = {key: item[start:end] for key, item in value.items()}
        elif isinstance(value, torch.Tensor | list):
            value = value[start:end]
        setattr(rows, name, value)
    return rows


def dump_sample(sample: Sample) -> dict[str, Any]:
    """Return a rollout with its branches as a dictionary, for a checkpoint."""
    return vars(sample) | (
        {"branches": [dump_sample(row) for row in sample.branches]} if hasattr(sample, "branches") else {}
    )


def restore_sample(values: dict[str, Any]) -> Sample:
    """Return the rollout of :func:`dump_sample`."""
    sample = object.__new__(Sample)
    vars(sample).update(values)
    if "branches" in values:
        sample.branches = [restore_sample(branch) for branch in values["branches"]]
    return sample
