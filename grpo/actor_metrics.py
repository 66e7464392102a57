"""What a training step sees, noted on each trainer rank for every sampled token.

Ranks reduce nothing: they return their notes with the status of ``ppo_train``, a few bytes a token, and
:mod:`grpo.step_metrics` computes the metrics of the step from all of them at once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from grpo import forward_mode
from grpo.adapter import adapter_parameters
from grpo.zero import whole_shape

CHUNK = 256  # positions: the softmax of 4096 tokens over the whole vocabulary has 3.3 GB


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass. Tensors are float32 ``[T]`` on the CPU, T its sampled tokens, sample by sample.

    Attributes:
        samples: place of each sample in the rollout.
        lengths: sampled tokens of each.
        loss: what was differentiated, without scaling.
        log_probs: of the trained policy before the update.
        log_ratios: those minus the log-probs of the policy that sampled.
        advantages: of the token.
        entropy: of the policy at the token, nat, at the temperature of the loss.
        unallocated: probability of the rows of the vocabulary that stand for no token.
    """

    samples: list[int]
    lengths: list[int]
    loss: float
    log_probs: torch.Tensor
    log_ratios: torch.Tensor
    advantages: torch.Tensor
    entropy: torch.Tensor
    unallocated: torch.Tensor


class ActorMetrics:
    """Notes of one call of ``ppo_train``, on one trainer rank.

    Args:
        trainer: OpenRLHF's ``ActorPPOTrainer``, whose ``args``, ``actor`` and ``tokenizer`` are set. DeepSpeed's engine
            counts optimizer steps over all parts of a resumed run.
    """

    def __init__(self, trainer: Any) -> None:
        self._args, self._engine = trainer.args, trainer.actor.model
        self._allocated = len(trainer.tokenizer)
        self._norms: list[float] = []
        self._micro_batches: list[MicroBatch] = []
        self._seen_steps = self._engine.global_steps

    @torch.no_grad()
    def note(self, experience: Any, log_probs: torch.Tensor, output: Any, loss: torch.Tensor) -> None:
        """Note a micro-batch between its forward and its backward pass.

        Args:
            experience: ``action_mask`` ``[B, A]``, ``advantages`` and ``action_log_probs`` ``[B, A]``, and
                ``info["sample"]`` (see :func:`grpo.step_metrics.before_training`).
            log_probs: of the trained policy, ``[B, A]``.
            output: of the model, ``logits`` fp32 ``[B, kept, V]`` of the last positions.
            loss: scalar.
        """
        mask = experience.action_mask.bool()
        old = forward_mode.old_log_probs(self._args, experience.action_log_probs, log_probs)
        entropy, unallocated = distribution(output["logits"], self._allocated)
        per_token = [log_probs, log_probs - old, experience.advantages]
        per_token += [_at_actions(values, experience) for values in (entropy, unallocated)]
        self._micro_batches.append(
            MicroBatch(
                [int(place) for place in experience.info["sample"]],
                mask.sum(-1).tolist(),
                float(loss),
                *(values[mask].float().cpu() for values in per_token),
            )
        )

    def after_backward_and_step(self) -> None:
        """Note the gradient norm if DeepSpeed's engine has just made an optimizer step.

        DeepSpeed 0.18.5 reports 1.0 for a norm that is not finite; :func:`grpo.adapter.gather` stops such a run.
        """
        if self._engine.global_steps == self._seen_steps:
            return
        self._seen_steps = self._engine.global_steps
        self._norms.append(float(self._engine.get_global_grad_norm()))

    def pop(self) -> dict[str, Any]:
        """Return the notes since the last call, and forget them.

        - ``micro_batches``: this rank's, in the order in which they were trained on.
        - ``grad_norms``: L2 norm before clipping of each optimizer step, of all ranks together.
        - ``optimizer_step``: how many steps were made since the run started.
        - ``sync_bytes``, ``device_memory``: see :mod:`grpo.metric_schema`.
        """
        norms, self._norms = self._norms, []
        micro_batches, self._micro_batches = self._micro_batches, []
        return {
            "micro_batches": micro_batches,
            "grad_norms": norms,
            "optimizer_step": float(self._seen_steps),
            "sync_bytes": float(adapter_bytes(self._engine.module)),
            "device_memory": float(_peak_device_memory()),
        }


def distribution(logits: torch.Tensor, allocated: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return entropy (nat) and unallocated probability of each position, each ``[B, S]``.

    Args:
        logits: fp32 ``[B, S, V]``.
        allocated: rows of the vocabulary that stand for a token, the first ones.
    """
    entropies, masses = [], []
    for chunk in logits.split(CHUNK, dim=1):
        probabilities = chunk.softmax(-1)
        masses.append(probabilities[..., allocated:].sum(-1))
        entropies.append(torch.special.entr(probabilities).sum(-1))
    return torch.cat(entropies, dim=1), torch.cat(masses, dim=1)


def _at_actions(values: torch.Tensor, experience: Any) -> torch.Tensor:
    """Return ``[B, kept]`` values of the last positions as ``[B, A]``: those of the position before each action."""
    padded = forward_mode.left_padded(values, experience.sequences)[:, :-1]
    return padded[:, -experience.action_mask.shape[1] :]


def adapter_bytes(model: torch.nn.Module) -> int:
    """Return the size of the adapter as one sync sends it, in bf16."""
    return 2 * sum(whole_shape(parameter).numel() for parameter in adapter_parameters(model)[1])


def _peak_device_memory() -> int:
    """Return the most that PyTorch held on the device since the last call, 0 on a CPU."""
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":  # where DeepSpeed's number is the process's memory
        return 0
    peak = accelerator.max_memory_allocated()
    accelerator.reset_peak_memory_stats()
    return peak
