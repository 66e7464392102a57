"""The policy loss of a whole optimizer batch, however it is split into micro-batches and ranks.

The loss of a token is in :mod:`grpo.train.objectives`; a new one is a function and an entry there. At a ratio of 1, all
have the same gradient. With advantages A_i, lengths L_i (sampled tokens) and S rollouts in the batch, the weight of a
token of rollout i is

- ``sequence_mean``: A_i / (L_i S). Every rollout counts the same, so a token of a long one counts less: a wrong answer
  is cheaper the longer it is.
- ``token_mean``: A_i / sum_j L_j. Every token counts the same (DAPO, https://arxiv.org/abs/2503.14476).
- ``constant``: A_i / (S M), with M the longest response allowed (Dr. GRPO, https://arxiv.org/abs/2503.20783).

A rollout is a response or a multi-turn conversation, and counts once. Its branches (:mod:`grpo.train.micro_batches`)
are more rows of its micro-batch, L_i counts the sampled tokens of all of them, and GSPO has one ratio for them. M is
``--generate_max_len`` for conversations too: the limit of one turn, and about what one row can hold. It is the same for
all rollouts, so it scales the steps and favors no rollout.

Stock OpenRLHF takes the mean over the tokens of each micro-batch. The size of the micro-batches then decides which of
the first two it approximates.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn

from grpo.rollout.rows import Batch
from grpo.stack.upstream import Arguments
from grpo.train import importance, objectives, reference
from grpo.train.micro_batches import group_by_optimizer_step, number_rollouts

MAX_LOG_RATIO = 20.0  # its exp is finite in fp32, even times an advantage: inf * 0 would be NaN


@dataclass(frozen=True)
class Ranks:
    """How the ranks share an optimizer batch.

    Attributes:
        world_size: ranks of the actor.
        micro_batches: of an optimizer batch on each rank.
    """

    world_size: int
    micro_batches: int

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks of a tensor in host memory. Collective."""
        total = values.to(get_accelerator().current_device_name(), copy=True)  # all_reduce works in place
        dist.all_reduce(total)
        return total.cpu()


class PolicyLoss(nn.Module):
    """The loss of one micro-batch, as its share of the whole batch.

    Attributes:
        scale: the factor for the sum over a micro-batch's tokens; None outside of :meth:`iterate_batches`.
        rollouts: long ``[B]``, the rollout of each row of the micro-batch, from 0.
        per_token: values of the last call, ``[B, A]`` by name, that metrics average over the sampled tokens:
            ``clip_ratio_low`` and ``clip_ratio_high``; with the correction, ``vllm_kl`` and the values of
            :func:`grpo.train.importance.compute_weights`; with a clip, ``advantage_clipped``; with a KL loss, ``kl``
            and ``logprobs_diff``.
    """

    def __init__(self, args: Arguments) -> None:
        super().__init__()
        self.args = args
        self.per_token: dict[str, torch.Tensor] = {}
        self.scale: float | None = None
        self.rollouts = torch.zeros(0, dtype=torch.long)

    def iterate_batches(
        self, loader: Iterable[Batch], ranks: Ranks, prepare: Callable[[list[list[Batch]]], None] | None = None
    ) -> Iterator[Batch]:
        """Yield the micro-batches of a loader, each once the loss is set to its optimizer batch.

        They are read ahead, to count the tokens of an optimizer batch before its first loss. They wait in host memory,
        where the rows of a step are anyway.

        Args:
            ranks: share the optimizer batches.
            prepare: called with the micro-batches of all optimizer batches, before the first is yielded.
        """
        batches: Iterable[list[Batch]] = group_by_optimizer_step(loader, ranks.micro_batches)
        if prepare:
            batches = list(batches)
            prepare([list(batch) for batch in batches])  # copies, because the loop below empties the lists
        # DeepSpeed divides the loss of each micro-batch by their number, and takes the mean of the gradients over the
        # ranks. Both factors undo that: what remains is the sum over the tokens of all ranks by the normalizer.
        divisor = 1 / ranks.micro_batches
        for batch in batches:
            rollouts = [number_rollouts(one) for one in batch]
            normalizer = self.compute_normalizer([one.action_mask for one in batch], rollouts, ranks.sum)
            self.scale = ranks.world_size / (divisor * normalizer)
            for self.rollouts in rollouts:  # read by the loss of the micro-batch that is yielded next
                yield batch.pop(0)  # released once it is done: the rank moves it to its device
            self.scale = None

    def compute_normalizer(
        self,
        action_masks: Sequence[torch.Tensor],
        rollouts: Sequence[torch.Tensor],
        total: Callable[[torch.Tensor], torch.Tensor],
    ) -> float:
        """Return the divisor of the sum over all tokens of an optimizer batch.

        Rollouts without a sampled token do not count.

        Args:
            action_masks: ``[B, A]``, for each micro-batch of this rank.
            rollouts: as the attribute, for each micro-batch of this rank.
            total: the sum over ranks of an fp64 ``[2]``. Collective.
        """
        counts = torch.zeros(2, dtype=torch.float64)  # float32 counts exactly only up to 2**24
        for mask, of_row in zip(action_masks, rollouts, strict=True):
            lengths = mask.bool().sum(-1).cpu()
            # unique: a rollout counts once, and all its rows are in one micro-batch
            counts += torch.tensor([len(of_row[lengths > 0].unique()), int(lengths.sum())])
        samples, tokens = total(counts).tolist()
        longest = self.args.generate_max_len
        divisors = {"sequence_mean": samples, "token_mean": tokens, "constant": samples * longest}
        return max(divisors[self.args.loss_aggregation], 1.0)  # 0 if nothing was sampled: then the sum is 0 too

    def aggregate(self, values: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        """Return this micro-batch's share of the batch's aggregate, 0-dim, times the trainer's divisor.

        Args:
            values: ``[B, A]``, one per token.

        Raises:
            RuntimeError: outside of :meth:`iterate_batches`, because the batch is unknown.
        """
        if self.scale is None:
            raise RuntimeError("the whole batch is unknown: iterate over PolicyLoss.iterate_batches(loader, ...)")
        mask = action_mask.bool()
        sums = torch.where(mask, values, 0.0).sum(-1)  # where, not times: masked values may be infinite
        if self.args.loss_aggregation == "sequence_mean":
            sums = sums / importance.sum_by_rollout(mask.sum(-1), self.rollouts).clamp(min=1)
        return sums.sum() * self.scale

    def compute_kl_loss(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, base: torch.Tensor, action_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return this micro-batch's share of the KL loss, and record the KL for the metrics, after :meth:`forward`.

        Args:
            log_probs, old_log_probs, base: see :func:`grpo.train.reference.compute_kl_losses`.
        """
        current = log_probs.detach()
        kl = reference.estimate_kl(current, base, self.args.kl_estimator)
        self.per_token |= {"kl": kl, "logprobs_diff": current - base}
        return self.aggregate(reference.compute_kl_losses(log_probs, old_log_probs, base), action_mask)

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
        rollout_log_probs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return this micro-batch's share of the loss, 0-dim, and set ``per_token``.

        Args:
            log_probs: ``[B, A]``, of the trained policy.
            old_log_probs: ``[B, A]``, of the policy that sampled.
            rollout_log_probs: ``[B, A]``, of the same policy as the engine reported them.
            advantages, action_mask: ``[B, A]``.

        Raises:
            ValueError: for rollouts without log-probs of the engine, with the correction.
        """
        args, mask, self.per_token = self.args, action_mask.bool(), {}
        if (limit := args.advantage_clip) is not None:
            self.per_token["advantage_clipped"] = (advantages.abs() > limit).float()
            advantages = advantages.clamp(-limit, limit)
        # Prompt and padding have no log-probs that mean anything: a ratio of 1 there keeps their exp finite.
        log_ratio = torch.where(mask, log_probs - old_log_probs, 0.0)
        if objectives.LOSSES[args.policy_loss_type].of_rollout:
            log_ratio = importance.average_by_rollout(log_ratio, mask, self.rollouts).expand_as(log_ratio)
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        loss, clipped = objectives.compute_token_losses(log_probs, ratio, advantages, args)
        self.per_token |= clipped
        if args.enable_vllm_is_correction:
            if rollout_log_probs is None:
                raise ValueError("the rollouts lack the engine's log-probs, which --enable_vllm_is_correction needs")
            mismatch = torch.where(mask, old_log_probs - rollout_log_probs, 0.0).detach()
            most, thresholds = args.vllm_is_max_kl, args.vllm_is_truncated_threshold
            near = None if most is None else importance.compute_binary_kl(rollout_log_probs, old_log_probs) <= most
            weights, values = importance.compute_weights(
                mismatch, mask, self.rollouts, args.vllm_is_correction_type, thresholds, near
            )
            self.per_token |= {**values, "vllm_kl": -mismatch}
            loss = weights * loss
        return self.aggregate(loss, mask)
