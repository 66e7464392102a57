from types import SimpleNamespace

import pytest
import torch

from grpo import metrics


def engine(steps: int, norm: float) -> SimpleNamespace:
    return SimpleNamespace(global_steps=steps, get_global_grad_norm=lambda: norm)


def test_gradient_norms_are_counted_once_a_step():
    actor = metrics.ActorMetrics(engine(0, 9.0))
    for steps, norm in [(0, 9.0), (1, 2.0), (1, 2.0), (2, 4.0)]:  # two micro-batches belong to step 1
        actor.after_backward_and_step(engine(steps, norm))
    assert actor.pop() == {"grad_norm": 3.0, "grad_norm_max": 4.0, "optimizer_steps": 2.0, "optimizer_step": 2.0}
    assert actor.pop() == {}


def test_advantages_follow_the_formula_in_any_order():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    advantages = (rewards.view(2, 4) - rewards.view(2, 4).mean(-1, keepdim=True)).view(-1)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    lengths = torch.randint(1, 6, (8,))
    mask = torch.arange(6)[None] < lengths[:, None]
    experiences = [
        SimpleNamespace(
            advantages=advantages[rows, None] * mask[rows],
            action_mask=mask[rows],
            rewards=rewards[rows],
            index=rows.tolist(),
        )
        for rows in order.split(3)
    ]
    result = metrics.experience_metrics(experiences, group_size=4)
    assert result["advantage_mean"] == pytest.approx(0, abs=1e-7)
    assert result["advantage_std"] == pytest.approx(advantages.std(correction=0).item())
    assert (result["advantage_min"], result["advantage_max"]) == (-0.75, 0.25)
    assert result["zero_spread_groups"] == 0.5
    assert result["reward_std"] == pytest.approx(rewards.std(correction=0).item())
