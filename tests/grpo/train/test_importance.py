"""Each weight against its formula in plain Python, with rollouts of several rows and tokens that nobody sampled."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.train import importance

LOW, HIGH = 0.5, 2.0
ROLLOUTS = [1, 0, 1]
MASK = [[True, True], [True, True], [True, False]]
NUMBERS = st.one_of(  # near the thresholds, or anywhere
    st.lists(st.lists(st.floats(*span), min_size=2, max_size=2), min_size=3, max_size=3)
    for span in ((-2, 2), (-80, 300))
)


def compute_formula(kind: str, row: int, at: int, numbers: list[list[float]]) -> float:
    """The weight of a sampled token."""
    ratio = math.exp(numbers[row][at]) if numbers[row][at] < 88 else math.inf  # as fp32
    if kind == "icepop":
        return ratio if LOW <= ratio <= HIGH else 0.0
    of_rollout = [
        number
        for one, (line, sampled) in enumerate(zip(numbers, MASK, strict=True))
        for number, is_sampled in zip(line, sampled, strict=True)
        if is_sampled and ROLLOUTS[one] == ROLLOUTS[row]
    ]
    mean = math.fsum(of_rollout) / len(of_rollout)
    is_dropped = kind == "mis" and not math.log(LOW) <= mean <= math.log(HIGH)
    return 0.0 if is_dropped else min(ratio, HIGH)


@pytest.mark.parametrize("kind", ["tis", "icepop", "mis"])
@given(NUMBERS)
def test_weights_are_their_formula_and_say_what_they_cut(kind, numbers):
    log_ratio, mask = torch.tensor(numbers), torch.tensor(MASK)
    weights, values = importance.compute_weights(log_ratio, mask, torch.tensor(ROLLOUTS), kind, (LOW, HIGH))
    assert torch.equal(values["importance_weight"], weights) and not weights.requires_grad
    for row, at in mask.nonzero().tolist():
        expected = compute_formula(kind, row, at, numbers)
        assert float(weights[row, at]) == pytest.approx(expected, rel=1e-4)
        is_cut = float(log_ratio[row, at].exp()) > expected * (1 + 1e-4)
        assert float(values["importance_cut"][row, at]) == is_cut


def test_the_binary_kl_is_that_of_two_outcomes_and_bounds_any_kind():
    generator = torch.Generator().manual_seed(0)
    engine, trainer = torch.rand(2, 2, 3, generator=generator, dtype=torch.float64)
    kl = importance.compute_binary_kl(engine.log(), trainer.log())
    both = (torch.distributions.Bernoulli(probs=values) for values in (engine, trainer))
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(*both))
    near, mask = kl <= kl.median(), torch.ones(2, 3, dtype=torch.bool)
    for kind in ("tis", "icepop", "mis"):
        plain, limited = (
            importance.compute_weights((trainer / engine).log(), mask, torch.arange(2), kind, (0.01, 99), limit)[0]
            for limit in (None, near)
        )
        assert plain.all() and torch.equal(limited, plain * near)
    ends = torch.tensor([0.0, -1e4, -1e-9, -1.0])  # certain and impossible tokens
    assert importance.compute_binary_kl(ends[:, None], ends).isfinite().all()
