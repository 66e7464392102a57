"""Hooks of openrlhf/trainer/ray/ppo_actor.py: a rank of the actor, its update and its checkpoints."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader

from grpo.checkpoint import saving
from grpo.lora import adapter, sync
from grpo.metrics import token_recorder
from grpo.model import vocabulary
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Batch
from grpo.stack.upstream.tokenizer import Tokenizer
from grpo.stack.upstream.trainer import Actor, ActorPPOTrainer, ModelOutput
from grpo.update import loss, old_policy, passes, reference


class RankTrainer(ActorPPOTrainer, Protocol):
    """``ActorPPOTrainer`` with what the hooks add to it.

    Attributes:
        metrics: what the rank records, from :func:`recorder`.
        actor_loss_fn: our loss.
    """

    metrics: token_recorder.ActorMetrics
    actor_loss_fn: loss.PolicyLoss


# PolicyModelActor.init_model_from_pretrained


def loading(args: Arguments) -> dict[str, Any]:
    """Return how the actor holds its frozen base, for ``actor.load_gpt_oss``."""
    return {"experts": args.experts, "shard": args.actor_shard}


def router_logits(args: Arguments) -> bool:
    """Return whether the router's logits are computed."""
    return passes.router_logits(args)


def allocated_rows(tokenizer: Tokenizer) -> vocabulary.Allocated:
    """Return the rows of the vocabulary that represent tokens."""
    return vocabulary.allocated(tokenizer)


def load_step(actor: Actor, args: Arguments) -> dict[str, Any]:
    """Load the checkpoint to resume from; return the controller's states."""
    return saving.load_step(actor.model, args)


# ActorPPOTrainer


class PolicyLoss(loss.PolicyLoss):
    """The loss, in place of OpenRLHF's."""

    @property
    def correction(self) -> str:
        """Return the kind of importance correction. From 0.9.4 on, OpenRLHF has another name for one."""
        name = super().correction
        return "mis" if name == "seq-mask-tis" else name


def recorder(trainer: ActorPPOTrainer) -> token_recorder.ActorMetrics:
    """Return the recorder of every sampled token's numbers."""
    return token_recorder.ActorMetrics(trainer)


def needs_nccl_group(args: Arguments, use_cuda_ipc: bool) -> bool:
    """Return whether weights go to the engines through NCCL, which they do without an adapter."""
    return sync.needs_nccl_group(args, use_cuda_ipc)


def whole_batches(trainer: RankTrainer, loader: DataLoader) -> Iterable[Batch]:
    """Return the micro-batches; each sets its routing, and what the loss needs from its whole optimizer batch."""
    actor = cast(torch.nn.Module, trainer.actor)
    prepare = partial(passes.set_old_log_probs, actor) if old_policy.is_in_update(trainer.args) else None
    batches = trainer.actor_loss_fn.batches(loader, trainer.replay_buffer, trainer.strategy, prepare)
    return passes.Replayed(actor, batches)


def old_log_probs(args: Arguments, experience: Batch, current: torch.Tensor) -> torch.Tensor:
    """Return the ratio's old log-probs, ``[B, A]``."""
    return passes.old_log_probs(args, experience, current)


def kl_loss(
    trainer: RankTrainer, kl: torch.Tensor, current: torch.Tensor, base: torch.Tensor, experience: Batch
) -> torch.Tensor:
    """Return the KL of the loss, over the whole optimizer batch.

    Args:
        kl: the estimate at each token, ``[B, A]``.
        current, base: log-probs of the actor and of the reference, ``[B, A]``.
    """
    return trainer.actor_loss_fn.divergence(kl, current - base, experience.action_mask)


def entropy_loss(trainer: RankTrainer, entropy: torch.Tensor, experience: Batch) -> torch.Tensor:
    """Return the entropy of the sampled tokens over the whole optimizer batch.

    Args:
        entropy: at each position, ``[B, S]``.
    """
    mask = experience.action_mask
    return trainer.actor_loss_fn.aggregate(entropy[:, -mask.shape[1] :], mask)


def note_tokens(
    trainer: RankTrainer, experience: Batch, log_probs: torch.Tensor, output: ModelOutput, policy_loss: torch.Tensor
) -> None:
    """Record the numbers of every sampled token of a micro-batch, before its backward pass."""
    trainer.metrics.note(experience, log_probs, output, policy_loss, trainer.actor_loss_fn.per_token)


def note_step(trainer: RankTrainer) -> None:
    """Record the gradient norm if this micro-batch ended an optimizer step."""
    trainer.metrics.after_backward_and_step()


def notes(trainer: RankTrainer) -> dict[str, Any]:
    """Return the records of the rank, and clear them."""
    return trainer.metrics.pop()


def trains_adapter(args: Arguments) -> bool:
    """Return whether an adapter is trained; our sync and our checkpoints need one."""
    return adapter.is_trained(args)


def sync_adapter(trainer: RankTrainer) -> sync.Sent | None:
    """Send the adapter to the engines, and note the memory that they report. Return what rank 0 has sent."""
    sent = sync.sync_adapter(trainer.actor.model.module, trainer.vllm_engines)
    trainer.metrics.note_engines(sent.memory if sent else None)
    return sent


# PolicyModelActor


def adapter_off(actor: torch.nn.Module) -> AbstractContextManager[None]:
    """Disable the adapter within the context, for the reference's log-probs."""
    return reference.adapter_off(actor)


def routing_replayed(
    actor: torch.nn.Module, sequences: torch.Tensor, routing: Sequence[torch.Tensor] | None
) -> AbstractContextManager[Any]:
    """Replay the engine's choice of experts within the context, if it was recorded."""
    return passes.routing_replayed(actor, sequences, routing)


def save_step(actor: Actor, args: Arguments, states: dict[str, Any]) -> None:
    """Save adapter and trainer state as a checkpoint of the step."""
    saving.save_step(actor.model, args, states)
