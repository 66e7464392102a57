"""The reference is the actor as it started, to the bit: the base model, or the base with the adapter of the start."""

import pytest
import torch
from openrlhf.models import Actor
from openrlhf.models.utils import compute_approx_kl, masked_mean

from grpo.model import loading
from grpo.train import reference
from grpo.train.worker import PolicyWorker


@pytest.fixture
def trained_model(peft_model):
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return peft_model


def compute_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(2, 12).view(1, 10)).logits


def test_the_adapter_of_the_start_stays_the_reference(trained_model, checkpoint):
    start, base = compute_logits(trained_model), compute_logits(loading.load_gpt_oss(checkpoint))
    taught = {name for name, parameter in trained_model.named_parameters() if parameter.requires_grad}
    reference.keep_start(trained_model)
    assert {name for name, parameter in trained_model.named_parameters() if parameter.requires_grad} == taught
    assert torch.equal(compute_logits(trained_model), start), "the frozen copy takes no part in the policy"
    for name, parameter in trained_model.named_parameters():
        if name in taught:
            torch.nn.init.normal_(parameter, std=0.2)
    after = compute_logits(trained_model)
    assert not torch.equal(after, start)
    with reference.as_reference(trained_model):
        assert torch.equal(compute_logits(trained_model), start)
    with reference.without_adapter(trained_model):
        assert torch.equal(compute_logits(trained_model), base)
    assert torch.equal(compute_logits(trained_model), after)
    trained_model(torch.arange(2, 12).view(1, 10)).logits.sum().backward()
    assert {name for name, parameter in trained_model.named_parameters() if parameter.grad is not None} == taught


def test_the_reference_pass_of_a_rank_equals_the_base_model(trained_model, checkpoint):
    rank = object.__new__(PolicyWorker)
    ids, mask = torch.arange(2, 12).view(1, 10), torch.ones(1, 10, dtype=torch.long)
    inputs = {"sequences": ids, "action_mask": mask[:, 1:], "attention_mask": mask}
    passes = []
    for model in (trained_model, loading.load_gpt_oss(checkpoint)):
        rank.actor = Actor(model)
        rank.actor.packing_samples = False  # OpenRLHF sets it only for models that it loads
        passes += [rank.forward(**inputs), rank.reference_forward(**inputs)]
    assert torch.equal(passes[1], passes[2]) and torch.equal(passes[2], passes[3])
    assert not torch.equal(passes[0], passes[1])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kl_is_openrlhfs(estimator, dtype):
    log_probs, base = (torch.randn(2, 64, 9, generator=torch.Generator().manual_seed(0)) * 6).to(dtype)
    ours, mask = reference.estimate_kl(log_probs, base, estimator), torch.rand(64, 9) < 0.5
    mask[:, 0], mask[0] = True, False
    assert torch.equal(ours, compute_approx_kl(log_probs, base, kl_estimator=estimator))
    assert (ours.abs() == reference.MOST_KL).any() and ours.dtype == torch.float32
    means = reference.masked_mean(ours, mask)
    assert torch.equal(means[1:], masked_mean(ours, mask, dim=-1)[1:]) and means[0] == 0


def test_a_token_that_the_policy_has_given_up_leaves_the_gradient_finite():
    log_probs, old = torch.tensor([-200.0, -1.0], requires_grad=True), torch.tensor([-200.0, -90.0])
    reference.compute_kl_losses(log_probs, old, torch.tensor([-1.0, -2.0])).sum().backward()
    assert log_probs.grad is not None and log_probs.grad.tolist() == [-199, reference.MOST_WEIGHT]


def test_the_mean_gradient_of_the_kl_loss_is_that_of_the_exact_kl():
    """Over all tokens of a distribution, sampled from another one."""
    made = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2
    logits, (old, base) = made[0].clone().requires_grad_(), made[1:].log_softmax(-1)
    log_probs = logits.log_softmax(-1)

    def compute_gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    p = log_probs.exp().detach()
    exact = compute_gradient((log_probs.exp() * (log_probs - base)).sum())
    assert (log_probs - old).exp().max() < reference.MOST_WEIGHT, "the bound of the weights makes a bias"
    losses = reference.compute_kl_losses(log_probs, old, base)
    torch.testing.assert_close(compute_gradient((old.exp() * losses).sum()), exact)
    # What is refused, and what this loss takes the place of, on the policy's own samples.
    k1, k3 = log_probs - base, (base - log_probs).exp() - 1 + log_probs - base
    assert compute_gradient((p * k1).sum()).abs().max() < 1e-12
    torch.testing.assert_close(
        compute_gradient((p * k3).sum()), compute_gradient((base.exp() * (base - log_probs)).sum())
    )
