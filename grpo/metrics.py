"""Metrics of the training step, computed where the numbers are."""

from typing import Any

from grpo.experience_metrics import experience_metrics

__all__ = ["ActorMetrics", "experience_metrics"]


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
