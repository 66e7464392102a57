"""Rollouts as the rows that a trainer computes on, from the engines' responses to the loss.

B rows, S tokens of a row with its prompt, and A = S - 1 positions that predict a token: position t predicts token
t + 1. Rows are padded on the right.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
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
        prompts, labels: one for each rollout, as the next three.
        rewards, scores: float32; NaN if missing.
        info: logs by name. Ours are the limit of lengths (``length_limit``), checks (``token_mismatch``), missing
            rewards (``reward_missing``) and penalties (``length_penalty``).
        index: for each row, the number of its rollout in the step. Branches come after all rollouts.
        routing: for each row, the engine's choice of experts, see :mod:`grpo.train.rollouts`. Only with
            --routing_replay.
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
        return self._change_tensors(lambda tensor: tensor.to(device))

    def pin_memory(self) -> Self:
        """Pin the memory of the tensors, as torch's ``DataLoader`` asks for, and return the rows."""
        return self._change_tensors(torch.Tensor.pin_memory)

    def _change_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        self.info = {name: change(value) for name, value in self.info.items()}
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, change(value))
        return self


@dataclass(eq=False, repr=False)  # tensors are not compared, and some attributes come later
class Sample(Rows):
    """One rollout, B = 1, from :func:`grpo.train.rollouts.build_rollout`.

    Attributes:
        sampled_by: the id of the engine's Ray actor.
        branches: one row for each branch; rollouts without an environment have none. Read it with
            :func:`get_branches`.
        engine_routing: as ``routing``, of a rollout whose routing only the parity gate reads, without a list around it.
        missing: names of the numbers that the rollout lacked, from :func:`grpo.train.rewards.complete`.
        details: what is known about the rollout after the update, from :mod:`grpo.metrics.step_metrics`.
    """

    sampled_by: str | None = None
    branches: "list[Sample]" = field(init=False)
    engine_routing: torch.Tensor = field(init=False)
    missing: set[str] = field(init=False)
    details: dict[str, Any] = field(init=False)


@dataclass(eq=False, repr=False)  # tensors are not compared, and some attributes come later
class Batch(Rows):
    """A micro-batch of rollouts, from :func:`grpo.train.micro_batches.build` to the loss, or one of its rows.

    Attributes:
        action_log_probs: float32 ``[B, A]``, see :func:`grpo.train.passes.add_log_probs`; None where the current
            log-probs are used, see :func:`grpo.train.passes.set_old_log_probs`.
        base_action_log_probs: the reference's, float32 ``[B, A]``; None without a KL loss.
        kl: float32 ``[B, A]``, actor minus reference, for the reward; None once the advantages have it.
        advantages: float32 ``[B, A]``, once they are assigned (:mod:`grpo.train.advantages`).
        replay: the :class:`grpo.model.routing.Replay` of this micro-batch's passes in the update, None without one.
    """

    action_log_probs: torch.Tensor | None = None
    base_action_log_probs: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    advantages: torch.Tensor = field(init=False)
    replay: Any = field(init=False)


def get_branches(rollout: Sample) -> Sequence[Sample]:
    """Return the branches of a rollout; () without an environment."""
    return getattr(rollout, "branches", ())


def group_rows(batch: Batch) -> list[list[int]]:
    """Return the numbers of the rows of each rollout of a micro-batch, the earliest first."""
    branches: list[list[int]] = [[] for _ in batch.prompts]
    for row in range(len(batch.prompts), len(batch.index)):
        branches[batch.index.index(batch.index[row])].append(row)  # the first row of a number is the rollout's own
    return [[*rows, number] for number, rows in enumerate(branches)]


def list_inputs(batches: "Sequence[Batch]") -> dict[str, list[Any]]:
    """Return the arguments of a forward pass of the ranks, each a list with one item for each micro-batch.

    ``routing`` is among them if the choices of experts are replayed.
    """
    names = ["sequences", "action_mask", "attention_mask"]
    if all(batch.routing is not None for batch in batches):
        names.append("routing")
    return {name: [getattr(batch, name) for batch in batches] for name in names}


_OF_ROWS = ("sequences", "attention_mask", "action_mask", "rollout_log_probs", "index", "routing")
_OF_BATCHES = ("action_log_probs", "base_action_log_probs", "kl", "advantages")


def join(rollouts: Sequence[Rows], pad_token_id: int, branches: Sequence[Rows] = ()) -> Batch:
    """Return rollouts and their branches as one micro-batch, padded.

    Args:
        pad_token_id: of ``sequences``; other tensors are padded with 0.
    """
    rows = [*rollouts, *branches]
    routings = [row.routing for row in rows if row.routing is not None]
    batch = Batch(
        sequences=_join([row.sequences for row in rows], pad_token_id),
        attention_mask=_join([row.attention_mask for row in rows]),
        action_mask=_join([row.action_mask for row in rows]),
        rollout_log_probs=None,
        prompts=[prompt for row in rollouts for prompt in row.prompts],
        labels=[label for row in rollouts for label in row.labels],
        rewards=torch.cat([row.rewards for row in rollouts]),
        scores=torch.cat([row.scores for row in rollouts]),
        info={name: torch.cat([row.info[name] for row in rollouts if name in row.info]) for name in rollouts[0].info},
        index=[number for row in rows for number in row.index],
        routing=[one for routing in routings for one in routing] if len(routings) == len(rows) else None,
    )
    for name in ("rollout_log_probs", *_OF_BATCHES):
        if getattr(rows[0], name, None) is not None:
            setattr(batch, name, _join([getattr(row, name) for row in rows]))
    return batch


def _join(tensors: Sequence[torch.Tensor], value: int = 0) -> torch.Tensor:
    longest = max(tensor.shape[-1] for tensor in tensors)
    return torch.cat([pad(tensor, (0, longest - tensor.shape[-1]), value=value) for tensor in tensors])


def part(batch: Batch, rows: slice, rollouts: slice) -> Batch:
    """Return some rows of a micro-batch, with the prompts, labels, rewards and logs of some of its rollouts."""
    chosen = copy(batch)
    for name in (*_OF_ROWS, *_OF_BATCHES):
        if (value := getattr(batch, name, None)) is not None:
            setattr(chosen, name, value[rows])
    for name in ("prompts", "labels", "rewards", "scores"):
        setattr(chosen, name, getattr(batch, name)[rollouts])
    chosen.info = {name: values[rollouts] for name, values in batch.info.items()}
    return chosen


def drop_branches(batch: Batch) -> Batch:
    """Return the rows of a micro-batch that are not branches."""
    rollouts = slice(len(batch.prompts))
    return part(batch, rollouts, rollouts)


def dump_sample(sample: Sample) -> dict[str, Any]:
    """Return a rollout with its branches as a dictionary, for a checkpoint."""
    values = vars(sample)
    return values | {"branches": list(map(dump_sample, sample.branches))} if "branches" in values else values


def restore_sample(values: dict[str, Any]) -> Sample:
    """Return the rollout of :func:`dump_sample`."""
    sample = object.__new__(Sample)  # not the constructor: fields that come later stay unset
    vars(sample).update(values)
    if "branches" in values:
        sample.branches = list(map(restore_sample, values["branches"]))
    return sample
