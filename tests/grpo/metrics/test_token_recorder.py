from types import SimpleNamespace

from torch import nn

from grpo.metrics import token_recorder


def make_engine(norms: list[float]) -> SimpleNamespace:
    """DeepSpeed's engine as it reports these gradient norms, one an optimizer step."""
    engine = SimpleNamespace(global_steps=0, module=nn.Linear(1, 1))
    engine.optimizer = SimpleNamespace(param_groups=[{"lr": 0.0}])
    engine.get_global_grad_norm = lambda: norms[engine.global_steps - 1]
    return engine


def test_gradient_norms_are_noted_once_a_step():
    engine = make_engine([2.0, 4.0])
    metrics = token_recorder.ActorMetrics(None, engine)
    for steps in (0, 1, 1, 2):  # two micro-batches belong to each step
        engine.global_steps = steps
        metrics.note_update()
    noted = metrics.pop()
    assert noted["grad_norms"] == [2.0, 4.0] and noted["optimizer_step"] == 2
    assert metrics.pop()["grad_norms"] == []


def test_the_learning_rate_is_the_mean_of_those_applied():
    """DeepSpeed's step ends with that of the schedule. The first optimizer step has two micro-batches."""
    engine = make_engine([1.0] * 3)
    metrics = token_recorder.ActorMetrics(None, engine)
    schedule, passes = iter([1e-3, 4e-3, 9e-3]), [False, True, True]
    for rates, step in (([0.0, 0.0, 1e-3], passes), ([4e-3], [True])):
        for rate, is_last in zip(rates, step, strict=True):
            assert engine.optimizer.param_groups[0]["lr"] == rate
            metrics.note(None)  # it has no tokens to record
            if is_last:
                engine.global_steps += 1
                engine.optimizer.param_groups[0]["lr"] = next(schedule)
            metrics.note_update()
        assert metrics.pop()["actor_lr"] == (5e-4 if len(rates) == 3 else 4e-3)
    assert "actor_lr" not in metrics.pop()
