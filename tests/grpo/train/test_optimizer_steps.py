"""The schedule of the learning rate, against transformers' own."""

import math
from argparse import Namespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers.optimization import get_scheduler

from grpo.flags.ours import CHOICES
from grpo.flags.parser import get_default
from grpo.train import optimizer_steps
from grpo.train.optimizer_steps import LearningRate, count_steps, count_updates

PEAK, LENGTH = 2e-3, 40


def make_args(per_step: int = 1, **changes) -> Namespace:
    """A run with 64 rollouts in a global step."""
    return Namespace(
        **{
            "lr_scheduler": "cosine_with_min_lr", "actor_learning_rate": PEAK, "lr_warmup_ratio": 0.03, "max_epochs": 1,
            "rollout_batch_size": 8, "n_samples_per_prompt": 8, "train_batch_size": 64 // per_step,
            "num_episodes": 50, "max_steps": None,
        }
        | changes
    )  # fmt: skip


def compute_reference_rates(name: str, ratio: float) -> list[float]:
    """transformers' learning rates, without the first, which is 0 in a warmup."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    least = {"min_lr": PEAK * 0.1} if name.endswith("min_lr") else {}
    schedule = get_scheduler(name, optimizer, math.ceil(LENGTH * ratio), LENGTH, least)
    rates = []
    for _ in range(LENGTH):
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize("name", CHOICES["lr_scheduler"])
@pytest.mark.parametrize(("per_step", "ratio"), [(8, 0.1), (1, 0.03), (2, 0.0), (4, 0.2)])
def test_every_schedule_is_that_of_transformers_one_step_ahead(name, per_step, ratio) -> None:
    rate = LearningRate.of_run(make_args(per_step, lr_scheduler=name, lr_warmup_ratio=ratio), LENGTH)
    expected = compute_reference_rates(name, ratio)
    assert [PEAK * rate.compute_share(done) for done in range(LENGTH)] == pytest.approx(expected, rel=1e-9)
    means = [sum(expected[first : first + per_step]) / per_step for first in range(0, LENGTH, per_step)]
    assert [rate.compute_at_step(step + 1) for step in range(len(means))] == pytest.approx(means, rel=1e-9)


def test_the_first_of_n_warm_up_steps_has_an_nth_of_the_peak_and_the_last_the_peak() -> None:
    rate = LearningRate.of_run(make_args(lr_warmup_ratio=0.1), LENGTH)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    LambdaLR(optimizer, rate.compute_share)
    assert optimizer.param_groups[0]["lr"] == PEAK / 4 == rate.compute_at_step(1)
    assert rate.compute_at_step(4) == PEAK > rate.compute_at_step(5)


def test_the_schedule_spans_the_steps_that_the_run_makes() -> None:
    """100 of the 31,250 steps that 5,000 problems suffice for: a warmup of 3 steps, and a tenth at the end."""
    args = make_args(max_steps=100)
    rate = LearningRate.of_run(args, count_steps(args, 5000) * count_updates(args))
    assert (rate.warm_up, rate.length) == (3, 100)
    rates = [rate.compute_at_step(step) for step in range(1, 101)]
    assert max(rates) == rates[2] == PEAK and rates[0] == pytest.approx(PEAK / 3)
    assert rates[-1] == pytest.approx(PEAK / 10) and min(rates[2:]) == rates[-1]
    assert rate.compute_share(140) == pytest.approx(0.1), "it does not rise after its end"
    assert count_steps(make_args(), 5000) == 31_250
    assert count_steps(make_args(max_steps=10**6), 5000) == 31_250
    assert count_steps(make_args(num_episodes=1), 71) == 8, "an episode's incomplete step is left out"
    assert count_updates(make_args(8)) == 8 and count_updates(make_args(max_epochs=2)) == 2


def test_a_rate_of_full_fine_tuning_is_called_low_for_lora_and_the_recipes_is_not() -> None:
    low = optimizer_steps.warnings(Namespace(actor_learning_rate=1e-6))
    assert ["--actor_learning_rate 1e-06 is low" in line for line in low] == [True]
    assert optimizer_steps.warnings(Namespace(actor_learning_rate=get_default("actor_learning_rate"))) == []
