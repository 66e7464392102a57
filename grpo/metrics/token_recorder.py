"""Records what a training step computes for every sampled token, on each trainer rank.

Ranks reduce nothing. They return their notes with the result of the update, a few bytes per token.
:mod:`grpo.metrics.step_metrics` computes the step's metrics from all of them at once.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from grpo.rollout.rows import Batch
from grpo.stack.upstream import Arguments, ModelOutput, TrainerEngine

logger = logging.getLogger("openrlhf.grpo.token_recorder")


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass. Tensors are float32 ``[T]`` on the CPU: T sampled tokens, rollout by rollout.

    Attributes:
        samples: index of each row's rollout in the step; branches (:mod:`grpo.train.micro_batches`) come last.
        lengths: number of sampled tokens of each row.
        loss: the differentiated loss, unscaled.
        log_ratios: log-probs of the trained policy before the update minus those of the policy that sampled.
        sampled: the trainer's log-probs of the policy that sampled; None if it has moved and they were not computed.
        advantages: of the token.
        entropy: of the policy at the token, nat, at the temperature of the loss.
        unallocated: probability of the unallocated vocabulary rows, before they are masked.
        of_loss: the loss's value for each token, by the name of the metric that is its mean.
        routing: at how many tokens and layers the actor would have chosen other experts than the engine, and how many
            choices it replayed.
    """

    samples: list[int]
    lengths: list[int]
    loss: float
    log_ratios: torch.Tensor
    sampled: torch.Tensor | None
    advantages: torch.Tensor
    entropy: torch.Tensor
    unallocated: torch.Tensor
    of_loss: dict[str, torch.Tensor] = field(default_factory=dict)
    routing: tuple[int, int] = (0, 0)


class ActorMetrics:
    """Notes of the update of one step, on one trainer rank.

    Attributes:
        engine_memory: what a sync reports of the engines, in bytes; None on ranks that it does not report to.
    """

    def __init__(self, args: Arguments, engine: TrainerEngine) -> None:
        self._args, self._engine = args, engine
        self._micro_batches, self._errors = list[MicroBatch](), 0
        self._norms, self._rates, self._rate = list[float](), list[float](), 0.0
        self._seen_steps = engine.global_steps  # over all parts of a resumed run
        self.engine_memory: int | None = None

    def note(self, *arguments: Any) -> None:
        """Record a micro-batch, see :meth:`_note`. A failure is counted and does not end the run."""
        try:
            self._rate = self._engine.optimizer.param_groups[0]["lr"]  # DeepSpeed's step sets the next one
            self._note(*arguments)
        except Exception:
            self._errors += 1
            logger.exception("a micro-batch has no metrics")

    @torch.no_grad()
    def _note(
        self,
        batch: Batch,
        log_probs: torch.Tensor,
        old: torch.Tensor,
        output: ModelOutput,
        loss: torch.Tensor,
        of_loss: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Record a micro-batch between its forward and its backward pass.

        Args:
            log_probs, old: of the trained policy and of the one that sampled, ``[B, A]``.
            output: the model's output, with ``scores`` (see :class:`grpo.train.log_probs.TokenScores`), ``[B, S]``.
            loss: scalar.
            of_loss: ``[B, A]`` by name, see :class:`grpo.train.loss.PolicyLoss`.
        """
        mask, is_moved = batch.action_mask.bool(), bool(self._norms)
        sampled = old if self._args.old_log_probs != "engine" else None if is_moved else log_probs

        entropy, unallocated = (  # [B, A]: the last position predicts nothing
            scores[:, -1 - mask.shape[1] : -1] for scores in (output.scores.entropy, output.scores.unallocated)
        )

        def copy(values: torch.Tensor) -> torch.Tensor:
            return values[mask].float().cpu()

        self._micro_batches.append(
            MicroBatch(
                samples=batch.index,
                lengths=mask.sum(-1).tolist(),
                loss=float(loss),
                log_ratios=copy(log_probs - old),
                sampled=None if sampled is None else copy(sampled),
                advantages=copy(batch.advantages),
                entropy=copy(entropy),
                unallocated=copy(unallocated),
                of_loss={name: copy(values) for name, values in (of_loss or {}).items()},
                routing=(0, 0) if batch.replay is None else batch.replay.counts(),
            )
        )

    def note_update(self) -> None:
        """Record gradient norm and learning rate if DeepSpeed's engine has just made an optimizer step.

        DeepSpeed 0.18.5 reports 1.0 for a norm that is not finite; :func:`grpo.lora.adapter.gather` stops such a run.
        """
        if self._engine.global_steps == self._seen_steps:
            return
        self._seen_steps = self._engine.global_steps
        self._norms.append(float(self._engine.get_global_grad_norm()))
        self._rates.append(self._rate)

    def pop(self) -> dict[str, Any]:
        """Return the notes since the last call, and clear them. :mod:`grpo.metrics.metric_schema` has the metrics.

        ``micro_batches`` are this rank's, in training order, and ``grad_norms`` those of each optimizer step.
        ``actor_lr`` needs a step; ``engine_memory`` has only the first rank, from the first sync on.
        """
        notes: dict[str, Any] = {
            "micro_batches": self._micro_batches,
            "grad_norms": self._norms,
            "metric_errors": float(self._errors),
            "optimizer_step": float(self._seen_steps),
            "device_memory": _peak_device_memory(),
        }
        if self._rates:
            notes["actor_lr"] = sum(self._rates) / len(self._rates)
        if self.engine_memory is not None:
            notes["engine_memory"] = float(self.engine_memory)
        self._micro_batches, self._norms, self._rates, self._errors = [], [], [], 0
        return notes


def _peak_device_memory() -> float:
    """Return PyTorch's peak device memory since the last call in bytes; 0 on a CPU."""
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":  # DeepSpeed would report the process's memory
        return 0.0
    peak = float(accelerator.max_memory_allocated())
    accelerator.reset_peak_memory_stats()
    return peak
