"""Hooks of openrlhf/trainer/ray/ppo_actor.py: a rank of the actor, its update and its checkpoints."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from grpo.checkpoint import saving
from grpo.lora import adapter, sync
from grpo.metrics import token_recorder
from grpo.model import vocabulary
from grpo.update import passes, reference
from grpo.update.loss import PolicyLoss

__all__ = ["PolicyLoss"]

# PolicyModelActor.init_model_from_pretrained


def router_logits(args: Any) -> bool:
    """Return whether the router's logits are computed."""
    return passes.router_logits(args)


def allocated_rows(tokenizer: Any) -> int:
    """Return how many rows of the vocabulary represent tokens."""
    return vocabulary.allocated(tokenizer)


def load_step(actor: Any, args: Any) -> dict[str, Any]:
    """Load the checkpoint to resume from; return the controller's states."""
    return saving.load_step(actor.model, args)


# ActorPPOTrainer


def recorder(trainer: Any) -> token_recorder.ActorMetrics:
    """Return the recorder of every sampled token's numbers."""
    return token_recorder.ActorMetrics(trainer)


def needs_nccl_group(args: Any, use_cuda_ipc: bool) -> bool:
    """Return whether weights go to the engines through NCCL, which they do without an adapter."""
    return sync.needs_nccl_group(args, use_cuda_ipc)


def training_path(actor: torch.nn.Module) -> None:
    """Put the actor into the mode in which old log-probs match the loss's."""
    passes.training_path(actor)


def whole_batches(trainer: Any, loader: Any) -> Iterable[Any]:
    """Return the micro-batches; each sets what the loss needs from its whole optimizer batch."""
    return trainer.actor_loss_fn.batches(loader, trainer.replay_buffer, trainer.strategy)


def entropy_use(args: Any) -> str | None:
    """Return the use of the entropy: "loss", "log", or None."""
    return passes.entropy_use(args)


def old_log_probs(args: Any, experience: Any, current: torch.Tensor) -> torch.Tensor:
    """Return the ratio's old log-probs, ``[B, A]``."""
    return passes.old_log_probs(args, experience, current)


def kl_loss(trainer: Any, kl: torch.Tensor, current: torch.Tensor, base: torch.Tensor, experience: Any) -> torch.Tensor:
    """Return the KL of the loss, over the whole optimizer batch.

    Args:
        kl: the estimate at each token, ``[B, A]``.
        current, base: log-probs of the actor and of the reference, ``[B, A]``.
    """
    return trainer.actor_loss_fn.divergence(kl, current - base, experience.action_mask)


def entropy_loss(trainer: Any, entropy: torch.Tensor, experience: Any) -> torch.Tensor:
    """Return the entropy of the sampled tokens over the whole optimizer batch.

    Args:
        entropy: at each position, ``[B, S]``.
    """
    mask = experience.action_mask
    return trainer.actor_loss_fn.aggregate(entropy[:, -mask.shape[1] :], mask)


def note_tokens(trainer: Any, experience: Any, log_probs: torch.Tensor, output: Any, loss: torch.Tensor) -> None:
    """Record the numbers of every sampled token of a micro-batch, before its backward pass."""
    trainer.metrics.note(experience, log_probs, output, loss, trainer.actor_loss_fn.per_token)


def note_step(trainer: Any) -> None:
    """Record the gradient norm if this micro-batch ended an optimizer step."""
    trainer.metrics.after_backward_and_step()


def notes(trainer: Any) -> dict[str, Any]:
    """Return the records of the rank, and clear them."""
    return trainer.metrics.pop()


def trains_adapter(args: Any) -> bool:
    """Return whether an adapter is trained; our sync and our checkpoints need one."""
    return adapter.is_trained(args)


def sync_adapter(trainer: Any) -> None:
    """Send the adapter to the engines."""
    sync.sync_adapter(trainer.actor.model.module, trainer.vllm_engines)


# PolicyModelActor


def adapter_off(actor: Any) -> AbstractContextManager[None]:
    """Disable the adapter within the context, for the reference's log-probs."""
    return reference.adapter_off(actor)


def save_step(actor: Any, args: Any, states: dict[str, Any]) -> None:
    """Save adapter and trainer state as a checkpoint of the step."""
    saving.save_step(actor.model, args, states)
