"""Which forward passes the actor runs besides those of the update, and what they compute.

With the recipe as shipped, it runs none: nothing reads log-probs before the update, and there is no reference.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import ray
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from grpo.model import routing
from grpo.rollout.rows import Batch, list_inputs
from grpo.stack.upstream import ActorGroup, Arguments
from grpo.train.optimizer_steps import is_in_update, is_of_engine, is_on_policy, makes_old_log_probs, reads_kl
from grpo.train.reference import estimate_kl, masked_mean


def has_balancing_loss(args: Arguments) -> bool:
    """Return whether the loss has the balancing term of a mixture of experts, which alone reads the router's logits."""
    return args.aux_loss_coef > 1e-8  # OpenRLHF's threshold


def add_log_probs(batches: Sequence[Batch], args: Arguments, actors: ActorGroup) -> None:
    """Give the micro-batches the log-probs that are read before or besides the update, and the KL of the reward.

    Sets ``action_log_probs``, ``base_action_log_probs`` (with a KL loss) and ``kl``, ``[B, A]`` each, and the logs
    ``kl`` and ``logprobs_diff``, ``[B]``.

    Args:
        actors: the ranks, which are the reference, too.
    """
    inputs = list_inputs(batches)

    def run_pass(method: str) -> list[torch.Tensor]:
        # Every rank returns a list, in the order of the micro-batches that it got.
        values = [each for part in ray.get(actors.async_run_method_batch(method, **inputs)) for each in part]
        if args.colocate_all_models:  # engines share the GPUs
            ray.get(actors.async_run_method("empty_cache"))
        return values

    if _needs_old_pass(batches, args):
        old = run_pass("forward")
    elif reads_kl(args):
        old = [cast(torch.Tensor, batch.rollout_log_probs) for batch in batches]
    else:
        old = [torch.zeros(batch.action_mask.shape) for batch in batches]  # nothing reads them
    base = run_pass("reference_forward") if args.init_kl_coef > 0 else [None] * len(batches)
    for batch, ours, reference in zip(batches, old, base, strict=True):
        batch.action_log_probs = ours
        batch.base_action_log_probs = reference if args.use_kl_loss else None
        batch.kl = difference = torch.zeros_like(ours)
        if reference is not None and not args.use_kl_loss:
            batch.kl, difference = estimate_kl(ours, reference, args.kl_estimator), ours.float() - reference.float()
        for name, values in (("kl", batch.kl), ("logprobs_diff", difference)):
            batch.info[name] = masked_mean(values, batch.action_mask)[: len(batch.prompts)]  # without branches


def _needs_old_pass(batches: Sequence[Batch], args: Arguments) -> bool:
    """Return whether the ranks compute the old log-probs now. They do not if the update does, or if nothing reads them.

    Without a pass, a KL penalty in the reward compares the engine's log-probs with the reference. The engine is the
    policy that sampled, so the mean of that difference over its rollouts is its KL.
    """
    is_unknown = reads_kl(args) and any(batch.rollout_log_probs is None for batch in batches)  # of a user's agent
    return (makes_old_log_probs(args) and not is_in_update(args)) or is_unknown


def set_old_log_probs(forward: Callable[..., torch.Tensor], optimizer_batches: Sequence[Sequence[Batch]]) -> None:
    """Set ``action_log_probs`` of the micro-batches of a step before its first optimizer step.

    The policy has not moved at the first optimizer step, whose own pass gives them: None stands for that.

    Args:
        forward: :meth:`grpo.train.worker.PolicyWorker.forward` of this rank. All ranks have equally many micro-batches.
        optimizer_batches: the micro-batches of each optimizer step, in order, in host memory.
    """
    first, *later = optimizer_batches
    for one in first:
        one.action_log_probs = None
    for one in (one for batch in later for one in batch):
        one.action_log_probs = forward(one.sequences, one.action_mask, one.attention_mask, one.routing)


def replay_each(actor: nn.Module, micro_batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield micro-batches. The actor's routers take the choices recorded for one until the next is drawn.

    Backward passes need them, too: they compute layers again.
    """
    for micro_batch in micro_batches:
        length, device = micro_batch.sequences.shape[1], get_accelerator().current_device_name()
        with routing.replay_choices(actor, micro_batch.routing, length, device) as replay:
            micro_batch.replay = replay
            yield micro_batch


def choose_old_log_probs(args: Arguments, batch: Batch, current: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of the policy that sampled, ``[B, A]``: this pass's own if the policy has not moved.

    Args:
        batch: with ``action_log_probs`` of :func:`add_log_probs` or :func:`set_old_log_probs`, and the engine's
            ``rollout_log_probs``.
        current: log-probs of this pass.
    """
    if is_of_engine(args):
        if batch.rollout_log_probs is None:
            raise ValueError("the rollouts have no log-probs of the engine, which --old_log_probs engine needs")
        return batch.rollout_log_probs
    if is_on_policy(args) or batch.action_log_probs is None:
        return current.detach()  # a ratio of exactly 1, which still has the gradient of the log-probs
    return batch.action_log_probs


def count_logits_to_keep(action_mask: torch.Tensor | None) -> int:
    """Return how many of the last positions need logits; 0 means all, as in transformers.

    Args:
        action_mask: bool ``[B, A]``, which of the last A tokens were sampled; None if every position counts.
    """
    if action_mask is None:
        return 0
    if not action_mask.any():
        return 2  # as for one token at the end; nothing reads them, so the fewest suffice
    first = int(action_mask.any(dim=0).int().argmax())
    return action_mask.shape[1] - first + 1  # the token before the first one predicts it
