"""The advantage of a token in each aggregation, and its gradient on tokens that were not sampled."""

import pytest
import torch

from tests.grpo.train.test_loss import AGGREGATIONS, MAX_LENGTH, make_arguments, make_whole_loss


def draw_group(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages ``[8]`` with a mean of 0, fp64, and lengths ``[8]``."""
    generator = torch.Generator().manual_seed(seed)
    advantages = torch.randn(8, generator=generator, dtype=torch.float64)
    return advantages - advantages.mean(), torch.randint(1, MAX_LENGTH, (8,), generator=generator)


def compute_token_advantages(aggregation: str, advantages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The derivative of the objective by the log-prob of each token, ``[8, A]``, on-policy."""
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    log_probs = torch.full(mask.shape, -1.0, dtype=torch.float64, requires_grad=True)
    loss = make_whole_loss(make_arguments(loss_aggregation=aggregation), mask)
    value = loss(log_probs, log_probs.detach(), advantages[:, None].expand(mask.shape), mask)
    return -torch.autograd.grad(value, log_probs)[0]


@pytest.mark.parametrize("seed", range(6))
def test_the_advantage_of_a_token(seed):
    advantages, lengths = draw_group(seed)
    for aggregation, weight in (
        ("sequence_mean", 1 / (lengths * 8)),
        ("token_mean", 1 / lengths.sum().expand(8)),
        ("constant", torch.full((8,), 1 / (8 * MAX_LENGTH))),
    ):
        rows = compute_token_advantages(aggregation, advantages, lengths)
        for row, advantage, share, length in zip(rows, advantages, weight, lengths, strict=True):
            torch.testing.assert_close(row[:length], (advantage * share).expand(length), check_dtype=False)
            assert not row[length:].any()


@pytest.mark.parametrize("seed", range(20))
def test_unbiased_token_advantages_add_up_to_the_sign_of_the_correlation_with_length(seed):
    advantages, lengths = draw_group(seed)
    correlation = torch.corrcoef(torch.stack([advantages, lengths.double()]))[0, 1]
    assert abs(correlation) > 1e-3
    for aggregation in ("token_mean", "constant"):
        assert compute_token_advantages(aggregation, advantages, lengths).sum().sign() == correlation.sign()
    assert (
        abs(compute_token_advantages("sequence_mean", advantages, lengths).sum()) < 1e-12
    )  # the biased form: 0 for any


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_on_other_tokens_is_minus_their_share_of_the_advantage(aggregation):
    advantages, lengths = draw_group(3)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    logits = torch.randn(*mask.shape, 11, dtype=torch.float64, requires_grad=True)
    sampled = torch.randint(11, mask.shape)
    log_probs = logits.log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
    loss = make_whole_loss(make_arguments(loss_aggregation=aggregation), mask)
    value = loss(log_probs, log_probs.detach(), advantages[:, None].expand(mask.shape), mask)
    gradient = -torch.autograd.grad(value, logits)[0]  # of the objective, which is maximized
    expected = -compute_token_advantages(aggregation, advantages, lengths)[..., None] * logits.detach().softmax(-1)
    others = torch.ones_like(logits).scatter(-1, sampled[..., None], 0).bool()
    torch.testing.assert_close(gradient[others], expected[others])


@pytest.mark.parametrize("sign", [1, -1], ids=["longer are better", "longer are worse"])
def test_a_negative_mean_advantage_feeds_unallocated_rows(sign):
    """Until they are masked: then nothing reaches them."""
    lengths = torch.tensor([2, 4, 8, 16])
    advantages = sign * torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
    mask = torch.arange(16) < lengths[:, None]
    sampled = torch.randint(8, mask.shape)  # rows 8, 9 and 10 stand for no token
    for rows in (11, 8):
        logits = torch.zeros(4, 16, 11, dtype=torch.float64, requires_grad=True)
        log_probs = logits[..., :rows].log_softmax(-1).gather(-1, sampled[..., None])[..., 0]
        loss = make_whole_loss(make_arguments(), mask)
        value = loss(log_probs, log_probs.detach(), advantages[:, None].expand(mask.shape), mask)
        gain = -torch.autograd.grad(value, logits)[0][..., 8:].sum()
        assert gain.sign() == (-sign if rows == 11 else 0)
