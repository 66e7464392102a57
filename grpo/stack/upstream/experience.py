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
        info: logs by name, ``[B]`` each. Ours are the limit of lengths (``length_limit``), checks
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

    @staticmethod
    def concat_experiences(experiences_list: "Sequence[Rows]", pad_token_id: int) -> "Batch":
        """Return the rows of several as one, padded."""


class Sample(Rows, Protocol):
    """One rollout, B = 1, from :func:`grpo.batch.rollouts.rollout_of`.

    Attributes:
        rewards, scores: float32 ``[1]``; NaN if missing.
        sampled_by: the id of the engine's Ray actor.
        branches: one row for each branch; rollouts without an environment lack it. Read it with
            :func:`grpo.batch.branches.of_sample`.
        policies: int64 ``[A]``, the policy that sampled each token, in optimizer steps; -1 for other tokens. Only with
            PARTIAL_ROLLOUTS.
        group: the seed of the prompt. Set with ``policies``.
        number: how many groups the run began before this one's. Set with PARTIAL_ROLLOUTS.
        missing: names of the numbers that the sample lacked, from :func:`grpo.batch.rewards.complete`.
        details: what is known about the sample after the update, from :mod:`grpo.metrics.step_metrics`.
    """

    rewards: "torch.Tensor"
    scores: "torch.Tensor"
    sampled_by: str | None
    branches: "list[Sample]"
    policies: "torch.Tensor"
    group: int
    number: int
    missing: set[str]
    details: dict[str, Any]


class Batch(Rows, Protocol):
    """A micro-batch of rollouts, from :func:`grpo.batch.branches.micro_batches` to the loss; or one of its rows.

    Attributes:
        action_log_probs: float32 ``[B, A]``, see :func:`grpo.update.passes.score`; None where the current log-probs are
            used, see :func:`grpo.update.passes.set_old_log_probs`.
        base_action_log_probs: the reference's, float32 ``[B, A]``; None without a KL loss.
        rewards, scores: float32 ``[B]``; a reward that is missing is NaN.
        advantages, returns: float32 ``[B, A]``, once :func:`grpo.batch.advantages.compute` has computed them.
        branch_counts: branches of each rollout, which are rows after the rollouts, for the forward passes.
        branches: for each rollout, its branches of one row each, from :func:`grpo.batch.branches.apart`; a micro-batch
            without branches lacks it. Read it with :func:`grpo.batch.branches.of_batch`.
        replay: the :class:`grpo.model.routing.Replay` of this micro-batch's passes in the update, None without one.
    """

    action_log_probs: "torch.Tensor | None"
    base_action_log_probs: "torch.Tensor | None"
    rewards: "torch.Tensor"
    scores: "torch.Tensor"
    advantages: "torch.Tensor"
    returns: "torch.Tensor"
    branch_counts: list[int]
    branches: "list[list[Batch]]"
    replay: Any

    def to_device(self, device: Any) -> "Batch":
        """Move the tensors, and return the batch."""
