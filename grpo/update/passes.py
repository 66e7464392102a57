"""Which forward passes the actor makes and what they compute: nothing unused."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import ray
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from grpo.batch import recorded_routing
from grpo.model import routing
from grpo.stack.upstream.arguments import Arguments
from grpo.stack.upstream.experience import Batch
from grpo.stack.upstream.trainer import ExperienceMaker
from grpo.update.loss import WholeBatches
from grpo.update.old_policy import is_in_update, is_of_engine, is_on_policy, makes_old_log_probs, reads_kl


def router_logits(args: Arguments) -> bool:
    """Return whether the router's logits are computed: only the balancing loss of a mixture of experts reads them."""
    return args.aux_loss_coef > 1e-8  # OpenRLHF's ActorPPOTrainer adds the loss above this


def old_log_probs_ref(
    maker: ExperienceMaker, samples: Sequence[Batch], **batches: list[torch.Tensor]
) -> "list[ray.ObjectRef[Any]] | ray.ObjectRef[Any]":
    """Start the forward passes for the old log-probs, or none if the ratio does not use them or the update makes them.

    Without a pass, a KL penalty in the reward compares the engine's log-probs with the reference. The engine is the
    policy that sampled, so the mean of that difference over its samples is its KL.

    Args:
        maker: OpenRLHF's ``RemoteExperienceMaker``.
        samples: ``Experience`` of each micro-batch.
        batches: ``sequences``, ``action_mask``, ``attention_mask`` of each micro-batch.

    Returns:
        The result of ``async_run_method_batch("forward")``. Without a pass: the engine's log-probs, or zeros if nothing
        reads them.
    """
    args = maker.args
    is_read = reads_kl(args)
    is_unknown = is_read and any(batch.rollout_log_probs is None for batch in samples)  # a user's agent may lack them
    if (makes_old_log_probs(args) and not is_in_update(args)) or is_unknown:
        batches |= of_batches(samples)
        return maker.actor_model_group.async_run_method_batch(method_name="forward", **batches)
    instead = [batch.rollout_log_probs if is_read else torch.zeros(batch.action_mask.shape) for batch in samples]
    copies = args.ring_attn_size * args.ds_tensor_parallel_size  # OpenRLHF takes one of this many equal results
    return ray.put([[values] for values in instead for _ in range(copies)])


@torch.no_grad()
def set_old_log_probs(actor: nn.Module, optimizer_batches: Sequence[Sequence[Batch]]) -> None:
    """Set ``action_log_probs`` of the micro-batches of a rollout before its first optimizer step.

    The policy has not moved at the first optimizer step, whose own pass gives them: None stands for that.

    Args:
        actor: OpenRLHF's ``Actor`` on this rank. Its ranks have equally many micro-batches.
        optimizer_batches: the micro-batches of each optimizer step, in order, in host memory.
    """
    first, *later = optimizer_batches
    for micro_batch in first:
        micro_batch.action_log_probs = None
    actor.eval()  # OpenRLHF's training_step puts it back
    device = get_accelerator().current_device_name()
    for micro_batch in (one for batch in later for one in batch):
        tensors = [micro_batch.sequences, micro_batch.action_mask, micro_batch.attention_mask]
        sequences, action_mask, attention_mask = (tensor.to(device) for tensor in tensors)
        with routing_replayed(actor, sequences, recorded_routing.of(micro_batch)):
            micro_batch.action_log_probs = actor(sequences, action_mask, attention_mask=attention_mask).cpu()


def of_batches(samples: Sequence[Batch]) -> dict[str, Any]:
    """Return the arguments of the actor's passes that replay the recorded routings; {} if nothing was recorded."""
    routings = [recorded_routing.of(batch) for batch in samples]
    return {} if None in routings else {"routing": routings}


def routing_replayed(
    actor: nn.Module, sequences: torch.Tensor, routings: Sequence[torch.Tensor] | None
) -> AbstractContextManager[routing.Replay | None]:
    """Let the actor's routers take recorded choices within the context, if there are any.

    Args:
        sequences: of the micro-batch, ``[B, S]``.
        routings: of its rows.
    """
    device = get_accelerator().current_device_name()
    return routing.replayed(actor, routings, sequences.shape[1], device)


@dataclass(frozen=True)
class Replayed:
    """Micro-batches; the actor's routers take the choices recorded for one until the next is asked for.

    Backward passes need them, too: they compute layers again.
    """

    actor: nn.Module
    micro_batches: WholeBatches

    def __len__(self) -> int:
        return len(self.micro_batches)

    def __iter__(self) -> Iterator[Batch]:
        for micro_batch in self.micro_batches:
            with routing_replayed(self.actor, micro_batch.sequences, recorded_routing.of(micro_batch)) as replay:
                micro_batch.replay = replay
                yield micro_batch


def old_log_probs(args: Arguments, experience: Batch, current: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of the policy that sampled, ``[B, A]``: this pass's own if the policy has not moved.

    Args:
        experience: OpenRLHF's, with ``action_log_probs`` of :func:`old_log_probs_ref` or :func:`set_old_log_probs`, and
            the engine's ``rollout_log_probs``.
        current: log-probs of this pass.
    """
    if is_of_engine(args):
        if experience.rollout_log_probs is None:
            raise ValueError("the samples have no log-probs of the engine, which --old_log_probs engine needs")
        return experience.rollout_log_probs
    if is_on_policy(args) or experience.action_log_probs is None:
        return current.detach()
    return experience.action_log_probs


def logits_to_keep(action_mask: torch.Tensor | None) -> int:
    """Return how many of the last positions need logits; 0 means all, as in transformers.

    Samples are padded, not packed: :mod:`grpo.launch.flags` refuses packing.

    Args:
        action_mask: bool ``[B, A]``, which of the last A tokens were sampled; None if every position counts.
    """
    if action_mask is None:
        return 0
    if not action_mask.any():
        return 2  # nothing reads them, so the fewest suffice
    first = int(action_mask.any(dim=0).int().argmax())
    return action_mask.shape[1] - first + 1  # the token before the first one predicts it
