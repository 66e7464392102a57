"""OpenRLHF's ``Experience`` on its way from the engines to the loss.

B rows, S tokens of a row with its prompt, and A = S - 1 positions that predict a token: position t predicts token
t + 1. Rows are padded on the right.
"""

from collections.abc import Sequence
from dataclasses import Field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


class Rows(Protocol):
    """The fields that an ``Experience`` has at every stage.

    Attributes:
        index: the number of each rollout in the step; [] for branches.
        sequences: int64 ``[B, S]``.
        attention_mask: int64 ``[B, S]``.
        action_mask: int64 ``[B, A]``, 1 for the tokens that the policy sampled.
        rollout_log_probs: float32 ``[B, A]``, by the engine; None if it reported none.
        kl: float32 ``[B, A]``, actor minus reference; None for branches.
        prompts, labels: one for each rollout.
        info: logs by name, ``[B]`` each. What the hooks add: the limit of lengths (``length_limit``), checks
            (``token_mismatch``), missing rewards (``reward_missing``), penalties (``length_penalty``) and the number of
            the rollout (``sample``).
        routing: for each row, the engine's choice of experts. Only with ROUTING_REPLAY; read it with
            :func:`grpo.batch.recorded_routing.of`.
        engine_routing: the same of a sample whose routing only the parity gate reads, without a list around it.
    """

    index: list[int]
    sequences: "torch.Tensor"
    attention_mask: "torch.Tensor"
    action_mask: "torch.Tensor"
    rollout_log_probs: "torch.Tensor | None"
    kl: "torch.Tensor | None"
    prompts: list[str]
    labels: list[Any]
    info: "dict[str, torch.Tensor]"
    routing: "list[torch.Tensor]"
    engine_routing: "torch.Tensor"
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class Sample(Rows, Protocol):
    """One rollout, B = 1, as ``SamplesGenerator`` returns it.

    Attributes:
        rewards, scores: float32 ``[1]``; None if a reward model scores later. ``experience_maker.complete`` makes a
            reward that is missing NaN.
        sampled_by: the id of the engine's Ray actor. ``experience_maker.experience_of`` sets it.
        branches: one row for each branch. ``experience_maker.experience_of`` sets it for rollouts in an environment;
            others lack it. Read it with :func:`grpo.batch.branches.of_sample`.
        policies: int64 ``[A]``, the policy that sampled each token, in optimizer steps; -1 for other tokens.
            ``experience_maker.experience_of`` sets it, with PARTIAL_ROLLOUTS.
        group: the seed of the prompt. Set with ``policies``.
        number: how many groups the run began before this one's. Set with PARTIAL_ROLLOUTS.
        missing: names of the numbers that the sample lacked. ``experience_maker.complete`` sets it.
        details: what is known about the sample after the update. ``ppo_trainer.after_training`` sets it.
    """

    rewards: "torch.Tensor | None"
    scores: "torch.Tensor | None"
    sampled_by: str | None
    branches: "list[Sample]"
    policies: "torch.Tensor"
    group: int
    number: int
    missing: set[str]
    details: dict[str, Any]

    @staticmethod
    def concat_experiences(experiences_list: "Sequence[Rows]", pad_token_id: int) -> "Batch":
        """Return the rows of several as one, padded."""


class Batch(Rows, Protocol):
    """A micro-batch of rollouts, from ``RemoteExperienceMaker`` to the replay buffers; also one branch as its row.

    Attributes:
        action_log_probs: float32 ``[B, A]``, see :func:`grpo.update.passes.old_log_probs_ref`; None where the current
            log-probs are used, see :func:`grpo.update.passes.set_old_log_probs`.
        rewards, scores: float32 ``[B]``; a reward that is missing is NaN.
        advantages, returns: float32 ``[B, A]``, once :func:`grpo.batch.advantages.compute` has computed them.
        branch_counts: branches of each rollout, which are rows after the rollouts. ``experience_maker.with_branches``
            sets it, for the forward passes.
        branches: for each rollout, its branches of one row each. ``experience_maker.apart`` sets it; a micro-batch
            without branches lacks it. Read it with :func:`grpo.batch.branches.of_batch`.
        replay: the :class:`grpo.model.routing.Replay` of this micro-batch's passes in the update, None without one.
            ``ppo_actor.whole_batches`` sets it.
    """

    action_log_probs: "torch.Tensor | None"
    rewards: "torch.Tensor"
    scores: "torch.Tensor"
    advantages: "torch.Tensor"
    returns: "torch.Tensor"
    branch_counts: list[int]
    branches: "list[list[Batch]]"
    replay: Any


class BufferItem(Protocol):
    """One row in the replay buffer of a rank.

    Attributes:
        info: the logs of the row.
        branches: the items of its branches. ``replay_buffer.with_branches`` sets it.
        routing: see :class:`Rows`, of this row. ``replay_buffer.with_branches`` sets it.
    """

    info: dict[str, Any]
    routing: "list[torch.Tensor]"
    branches: "list[BufferItem]"
