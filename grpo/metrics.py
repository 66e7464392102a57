"""Metrics of the training step, computed where the numbers are."""

from collections.abc import Sequence
from typing import Any

import torch


class ActorMetrics:
    """Gradient norms of one call of ``ppo_train``, on one trainer rank.

    Args:
        engine: DeepSpeed's engine, which counts optimizer steps over all parts of a resumed run.
    """

    def __init__(self, engine: Any) -> None:
        self._norms: list[float] = []
        self._seen_steps = engine.global_steps

    def after_backward_and_step(self, engine: Any) -> None:
        """Note the gradient norm if DeepSpeed's ``engine`` has just made an optimizer step.

        DeepSpeed 0.18.5 reports 1.0 for a norm that is not finite; :func:`grpo.adapter.gather` stops such a run.
        """
        if engine.global_steps == self._seen_steps:
            return
        self._seen_steps = engine.global_steps
        self._norms.append(float(engine.get_global_grad_norm()))

    def pop(self) -> dict[str, float]:
        """Return the metrics since the last call.

        - ``grad_norm``, ``grad_norm_max``: L2 norm before clipping, mean and maximum over the optimizer steps.
        - ``optimizer_steps``: how many steps that were; ``optimizer_step``: how many since the run started.
        """
        norms, self._norms = self._norms, []
        if not norms:
            return {}
        return {
            "grad_norm": sum(norms) / len(norms),
            "grad_norm_max": max(norms),
            "optimizer_steps": float(len(norms)),
            "optimizer_step": float(self._seen_steps),
        }


def experience_metrics(experiences: Sequence[Any], group_size: int) -> dict[str, float]:
    """Return metrics of the advantages of one rollout batch.

    - ``advantage_mean``, ``_std``, ``_min``, ``_max``: over samples (all tokens of a sample share one advantage).
    - ``zero_spread_groups``: share of groups whose samples all got the same reward: they teach nothing.
    - ``reward_std``: standard deviation of the reward over all samples.

    Args:
        experiences: after ``compute_advantages_and_returns``; ``advantages`` and ``action_mask`` are ``[B, A]``.
        group_size: samples a prompt.
    """
    advantages = torch.cat(
        [(e.advantages * e.action_mask).sum(-1) / e.action_mask.sum(-1).clamp(min=1) for e in experiences]
    ).float()
    rewards = torch.cat([e.rewards for e in experiences]).float()
    order = torch.tensor([index for e in experiences for index in e.index])
    groups = rewards[order.argsort()].view(-1, group_size)
    spread = groups.amax(-1) - groups.amin(-1)
    return {
        "advantage_mean": advantages.mean().item(),
        "advantage_std": advantages.std(correction=0).item(),
        "advantage_min": advantages.min().item(),
        "advantage_max": advantages.max().item(),
        "zero_spread_groups": (spread == 0).float().mean().item(),
        "reward_std": rewards.std(correction=0).item(),
    }
