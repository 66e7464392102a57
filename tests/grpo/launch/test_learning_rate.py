import warnings
from argparse import Namespace

import pytest
import torch

from grpo.launch import learning_rate
from grpo.launch.learning_rate import LearningRate
from grpo.settings.recipe import default
from grpo.settings.table import SETTINGS

PEAK, LENGTH = 2e-3, 40


def compute_applied_rates(args: Namespace, per_step: int) -> list[float]:
    """The mean over the optimizer steps of each global step, with the schedule of a rank."""
    from grpo.training.update import make_schedule  # imports DeepSpeed

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = make_schedule(args, optimizer, LENGTH)
    means = []
    for _ in range(LENGTH // per_step):
        rates = []
        for _ in range(per_step):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        means.append(sum(rates) / len(rates))
    return means


@pytest.mark.parametrize("name", SETTINGS["LR_SCHEDULER"].choices)
@pytest.mark.parametrize(("per_step", "ratio"), [(8, 0.1), (1, 0.03), (2, 0.0), (4, 0.2)])
def test_every_schedule_is_that_of_the_run(name, per_step, ratio) -> None:
    args = Namespace(lr_scheduler=name, actor_learning_rate=PEAK, lr_warmup_ratio=ratio)
    rate = LearningRate.of_run(args, LENGTH, per_step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = compute_applied_rates(args, per_step)
    got = [rate.compute_at_step(step) for step in range(1, len(expected) + 1)]
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_text_has_warm_up_in_global_steps_first_rates_peak_and_end() -> None:
    rate = LearningRate("cosine_with_min_lr", 1e-6, 27, 900, 9)
    text = "\n".join(rate.describe(100))
    assert "over 900 optimizer steps, warmup 27 (3 global steps)" in text
    for step in (1, 2, 3, 4, 100):
        assert f"{rate.compute_at_step(step):.3g} in step {step}" in text
    assert rate.compute_at_step(4) == max(rate.compute_at_step(step) for step in range(1, 101))


def test_a_run_that_ends_in_its_warm_up_says_so() -> None:
    assert "the run ends before it, after step 2" in LearningRate("constant_with_warmup", 1, 30, 99, 3).describe(2)[0]
    assert "ends before" not in LearningRate("constant_with_warmup", 1, 30, 99, 3).describe(10)[0]


def test_the_recipes_rate_is_called_low_for_lora_and_ten_times_it_is_not() -> None:
    low = learning_rate.warnings(Namespace(actor_learning_rate=float(default("LEARNING_RATE"))))
    assert ["LEARNING_RATE=1e-06 is low" in line for line in low] == [True]
    assert learning_rate.warnings(Namespace(actor_learning_rate=1e-5)) == []
