import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.train import importance

LOW, HIGH = 0.5, 2.0
LOG_RATIOS = st.lists(st.floats(-300, 300), min_size=6, max_size=6)


def compute_weights(kind: str, log_ratios: list[float], mask: torch.Tensor | None = None):
    log_ratio = torch.tensor(log_ratios).view(2, 3)
    mask = torch.ones(2, 3, dtype=torch.bool) if mask is None else mask
    return log_ratio, *importance.compute_weights(log_ratio, mask, torch.arange(2), kind, (LOW, HIGH))


@given(LOG_RATIOS)
def test_tis_truncates_only_from_above(log_ratios):
    log_ratio, token_weights, metrics = compute_weights("tis", log_ratios)
    assert torch.equal(token_weights, log_ratio.exp().clamp(max=HIGH))
    assert torch.equal(metrics["importance_cut"], (log_ratio.exp() > HIGH).float())
    assert torch.equal(metrics["importance_weight"], token_weights)


@given(LOG_RATIOS)
def test_icepop_keeps_ratios_between_the_thresholds(log_ratios):
    log_ratio, token_weights, metrics = compute_weights("icepop", log_ratios)
    ratio = log_ratio.exp()
    inside = (ratio >= LOW) & (ratio <= HIGH)
    assert torch.equal(token_weights[inside], ratio[inside]) and not token_weights[~inside].any()
    cut = ~inside & (ratio > 0)  # a ratio of 0 is a weight of 0 anyway
    assert torch.equal(metrics["importance_cut"], cut.float())


@given(LOG_RATIOS)
def test_mis_drops_samples_by_their_geometric_mean_and_truncates_the_rest(log_ratios):
    log_ratio, token_weights, _ = compute_weights("mis", log_ratios)
    for row, weight in zip(log_ratio, token_weights, strict=True):
        if LOW <= row.mean().exp() <= HIGH:
            assert torch.equal(weight, row.exp().clamp(max=HIGH))
        else:
            assert not weight.any()


@given(LOG_RATIOS)
def test_mis_keeps_or_drops_a_rollout_with_all_of_its_rows(log_ratios):
    log_ratio, mask = torch.tensor(log_ratios).view(3, 2), torch.tensor([[True, True], [True, True], [True, False]])
    token_weights, _ = importance.compute_weights(log_ratio, mask, torch.tensor([1, 0, 1]), "mis", (LOW, HIGH))
    for rows in ([0, 2], [1]):
        inside = LOW <= log_ratio[rows][mask[rows]].mean().exp() <= HIGH
        assert torch.equal(token_weights[rows], log_ratio[rows].exp().clamp(max=HIGH) * inside)


@pytest.mark.parametrize("kind", ["tis", "icepop", "mis"])
def test_unsampled_tokens_have_no_influence(kind):
    mask = torch.tensor([[True, True, False], [False, False, False]])
    values = [0.1, 0.2, 0.0, 0.0, 0.0, 0.0]
    _, token_weights, metrics = compute_weights(kind, values, mask)
    assert not metrics["importance_cut"][mask].any()
    assert torch.allclose(token_weights[0, :2], torch.tensor([0.1, 0.2]).exp())


@pytest.mark.parametrize("kind", ["", "TIS"])
def test_an_unknown_kind_is_refused_and_not_taken_for_another(kind):
    with pytest.raises(ValueError, match="unknown importance correction"):
        compute_weights(kind, [0.0] * 6)


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


def test_certain_and_impossible_tokens_have_a_finite_binary_kl():
    ends = torch.tensor([0.0, -1e4, -1e-9, -1.0])
    assert importance.compute_binary_kl(ends[:, None], ends).isfinite().all()
