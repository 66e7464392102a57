"""Log-probs without whole logits, against a float64 formula and against the full logits in bf16."""

import pytest
import torch

from grpo.model.vocabulary import Allocated
from grpo.train import log_probs

TOKENS, HIDDEN, VOCABULARY, ROWS = 600, 64, 1000, 950
RESERVED = (0, 7, 8, 949)
KEPT = Allocated(ROWS, RESERVED)
TOKEN_IDS = [row for row in range(ROWS) if row not in RESERVED]


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator) / 8
    targets = torch.tensor(TOKEN_IDS)[torch.randint(len(TOKEN_IDS), (TOKENS,), generator=generator)]
    upstream = torch.randn(2, TOKENS, generator=generator)
    return hidden, weight, targets, upstream


def compute_exact(hidden, weight, targets, temperature):
    logits = hidden.double() @ weight.double().T
    scaled = (logits[:, TOKEN_IDS] / temperature).log_softmax(-1)
    chosen = scaled.gather(-1, find_places(targets)).squeeze(-1)
    unallocated = 1 - (logits / temperature).softmax(-1)[:, TOKEN_IDS].sum(-1)
    return chosen, -(scaled.exp() * scaled).sum(-1), unallocated


def find_places(targets):
    """Where the targets stand among the tokens, ``[tokens, 1]``."""
    return torch.tensor([TOKEN_IDS.index(target) for target in targets.tolist()])[:, None]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_and_gradient_against_float64(inputs, temperature):
    hidden, weight, targets, upstream = inputs
    ours, theirs = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
    scores = log_probs.token_scores(ours, weight, targets, KEPT, temperature)
    expected = compute_exact(theirs, weight, targets, temperature)
    for values, wanted in zip(scores, expected, strict=True):
        torch.testing.assert_close(values.double(), wanted, rtol=1e-5, atol=2e-5)
    (gradient,) = torch.autograd.grad(scores[:2], ours, list(upstream))
    (wanted,) = torch.autograd.grad(expected[:2], theirs, list(upstream.double()))
    assert (gradient - wanted).norm() < 1e-5 * wanted.norm()


def test_bf16_equals_full_logits(inputs):
    hidden, weight, targets, upstream = inputs
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    scores = log_probs.token_scores(ours, weight, targets, KEPT)
    full = torch.nn.functional.linear(theirs, weight)[:, TOKEN_IDS].float().log_softmax(-1)
    full = full.gather(-1, find_places(targets)).squeeze(-1)
    torch.testing.assert_close(scores.log_probs, full)
    (gradient,) = torch.autograd.grad(scores.log_probs, ours, upstream[0])
    (wanted,) = torch.autograd.grad(full, theirs, upstream[0])
    torch.testing.assert_close(gradient, wanted)


def test_memory_does_not_hold_the_logits_of_all_tokens(inputs, monkeypatch):
    hidden, weight, targets, _ = inputs
    largest = 0
    linear = torch.nn.functional.linear

    def watch_linear(*arguments):
        nonlocal largest
        result = linear(*arguments)
        largest = max(largest, len(result))
        return result

    monkeypatch.setattr(torch.nn.functional, "linear", watch_linear)
    states = hidden.clone().requires_grad_()
    log_probs.token_scores(states, weight, targets, KEPT).log_probs.sum().backward()
    assert largest == log_probs.SCORED_TOKENS < TOKENS


def test_a_model_returns_logits_again_after_the_context(checkpoint):
    from grpo.model import loading

    model = loading.load_gpt_oss(checkpoint)
    ids = torch.arange(2, 12).view(1, 10)
    before = model(ids).logits
    with log_probs.scoring(model, ids.roll(-1, 1), None, 1.0):
        scores = log_probs.read_scores(model(ids).logits, ids)
    assert torch.equal(model(ids).logits, before)
    expected = before[0].float().log_softmax(-1).gather(-1, ids[0].roll(-1)[:, None])[:, 0]
    torch.testing.assert_close(scores.log_probs[0], expected)
