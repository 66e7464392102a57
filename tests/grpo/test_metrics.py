from types import SimpleNamespace

from grpo import metrics


def engine(steps: int, norm: float) -> SimpleNamespace:
    return SimpleNamespace(global_steps=steps, get_global_grad_norm=lambda: norm)


def test_gradient_norms_are_counted_once_a_step():
    actor = metrics.ActorMetrics(engine(0, 9.0))
    for steps, norm in [(0, 9.0), (1, 2.0), (1, 2.0), (2, 4.0)]:  # two micro-batches belong to step 1
        actor.after_backward_and_step(engine(steps, norm))
    assert actor.pop() == {"grad_norm": 3.0, "grad_norm_max": 4.0, "optimizer_steps": 2.0, "optimizer_step": 2.0}
    assert actor.pop() == {}
