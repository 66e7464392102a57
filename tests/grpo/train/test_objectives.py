"""Each loss of a token against the formulas of its paper, in float64: its value, and its gradient in closed form."""

from types import SimpleNamespace

import torch

from grpo.train.objectives import LOSSES, compute_token_losses
from tests.docs.pages import get_page

MAX_RATIO, POSITIVE, OTHER = 5.0, 0.8, 1.7


def make_arguments(kind: str) -> SimpleNamespace:
    return SimpleNamespace(
        policy_loss_type=kind, eps_clip_low_high=(0.2, 0.3), dual_clip=None, cispo_max_ratio=MAX_RATIO,
        sapo_temperatures=[POSITIVE, OTHER],
    )  # fmt: skip


def make_tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs (a leaf), their ratios to an old policy from 0.02 to 50, and advantages of both signs and 0."""
    log_ratio = torch.linspace(-4, 4, 81, dtype=torch.float64).expand(3, -1)
    log_probs = (log_ratio - 4.5).requires_grad_()
    advantages = torch.tensor([[1.5], [-0.7], [0.0]], dtype=torch.float64).expand_as(log_probs)
    return log_probs, (log_probs + 4.5).exp(), advantages


def compute_value_and_gradient(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, ratio, advantages = make_tokens()
    loss, _ = compute_token_losses(log_probs, ratio, advantages, make_arguments(kind))
    return loss.detach(), torch.autograd.grad(loss.sum(), log_probs)[0]


def assert_equal(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_cispo_weights_the_log_prob_by_a_bounded_ratio_without_a_gradient():
    """MiniMax-M1, equations 4 and 5, without a lower bound: -sg(min(r, bound)) A log pi."""
    log_probs, ratio, advantages = (each.detach() for each in make_tokens())
    weight = torch.minimum(ratio, torch.tensor(MAX_RATIO, dtype=torch.float64)) * advantages
    value, gradient = compute_value_and_gradient("cispo")
    assert_equal(value, -weight * log_probs)
    assert_equal(gradient, -weight)
    assert (ratio > MAX_RATIO).any() and (gradient[:2] != 0).all(), "a bounded token keeps its gradient"


def test_sapo_fades_on_both_sides_of_a_ratio_of_1():
    """Equations 6 and 7 give the value; in equation 8 a token's gradient has the weight sech^2(t / 2 (r - 1))."""
    _, ratio, advantages = (each.detach() for each in make_tokens())
    temperature = torch.tensor([[POSITIVE], [OTHER], [OTHER]], dtype=torch.float64)
    value, gradient = compute_value_and_gradient("sapo")
    assert_equal(value, -advantages * 4 / temperature / (1 + torch.exp(-temperature * (ratio - 1))))
    assert_equal(gradient, -advantages * ratio / torch.cosh(temperature / 2 * (ratio - 1)) ** 2)


def test_ppo_has_no_gradient_beyond_the_bound_of_its_advantage():
    _, ratio, advantages = (each.detach() for each in make_tokens())
    value, gradient = compute_value_and_gradient("ppo")
    beyond = ((advantages > 0) & (ratio > 1.3)) | ((advantages < 0) & (ratio < 0.8))
    bound = torch.full_like(ratio, 0.8).masked_fill(advantages > 0, 1.3)
    assert_equal(value, -advantages * ratio.where(~beyond, bound))
    assert_equal(gradient, -advantages * ratio * ~beyond)


def test_all_have_the_same_gradient_at_a_ratio_of_1():
    for kind in LOSSES:
        assert_equal(compute_value_and_gradient(kind)[1][:, 40], torch.tensor([-1.5, 0.7, 0.0], dtype=torch.float64))


def test_the_clip_ratios_count_what_the_metrics_say():
    log_probs, ratio, advantages = (each.detach() for each in make_tokens())
    clipped = {
        kind: compute_token_losses(log_probs, ratio, advantages, make_arguments(kind))[1]
        for kind in ("ppo", "cispo", "sapo")
    }
    low, high = ((advantages < 0) & (ratio < 0.8), (advantages > 0) & (ratio > 1.3))
    assert torch.equal(clipped["ppo"]["clip_ratio_low"], low.float())
    assert torch.equal(clipped["ppo"]["clip_ratio_high"], high.float())
    assert torch.equal(clipped["cispo"]["clip_ratio_high"], ((advantages != 0) & (ratio > MAX_RATIO)).float())
    assert not clipped["cispo"]["clip_ratio_low"].any()
    assert not any(values.any() for values in clipped["sapo"].values())


def test_the_docs_have_a_row_for_every_loss():
    (table,) = [table for table in get_page("docs/loss-and-length.md").tables if table[0][0] == "loss"]
    assert [row[0].split()[0].strip("`") for row in table[1:]] == list(LOSSES)
