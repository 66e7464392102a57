import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from grpo.model import loading, routing
from tests.grpo.routed_model import (
    CHOSEN,
    EXPERTS,
    LAYERS,
    LENGTH,
    ROWS,
    TOKENS,
    compute_own_choices,
    draw_choices,
    make_small_model,
    spread_weights,
)


def compute_gradients(model, logits):
    return torch.autograd.grad(logits.float().square().mean(), [p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replaying_the_own_choice_changes_no_bit(dtype):
    model = make_small_model(dtype)
    plain, choices = compute_own_choices(model)
    in_another_order = [choice.flip(-1) for choice in choices]
    partly = [choice[: LENGTH - 2].clone() for choice in choices]  # others choose for themselves
    partly[0][3] = 0
    for routings in (choices, in_another_order, partly):
        with routing.replay_choices(model, routings, LENGTH, "cpu"):
            replayed = model(TOKENS).logits
        assert torch.equal(replayed, plain)
        for ours, stock in zip(compute_gradients(model, replayed), compute_gradients(model, plain), strict=True):
            assert torch.equal(ours, stock)
        plain, _ = compute_own_choices(model)


def test_recorded_experts_are_taken_with_weights_from_the_own_logits():
    """Against a softmax over the chosen logits in float64, and with a gradient for the router."""
    router = make_small_model().double().model.layers[0].mlp.router
    states = torch.randn(1, LENGTH, 32, dtype=torch.double, requires_grad=True)
    recorded = draw_choices()[0][:, :1]
    holder = torch.nn.ModuleList([router])
    with routing.replay_choices(holder, [recorded], LENGTH, "cpu"):
        *_, weights, indices = router(states[0])
    weights = spread_weights(weights, indices)
    experts = recorded[:, 0].long() - 1
    assert torch.equal(indices.sort().values, experts.sort().values)
    logits = states[0] @ router.weight.T + router.bias
    expected = torch.zeros_like(logits).scatter(1, experts, logits.gather(1, experts).softmax(-1))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(weights)
    wanted = torch.autograd.grad(expected, [states, router.weight, router.bias], upstream, retain_graph=True)
    for ours, theirs in zip(
        torch.autograd.grad(weights, [states, router.weight, router.bias], upstream), wanted, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_it_counts_choices_that_the_router_would_have_made_differently():
    model = make_small_model()
    plain, choices = compute_own_choices(model)
    choices[1][3:] = 0  # unknown
    kept = choices[0][2, -1].clone()  # of the last layer, so no later choice depends on it
    for instead, differing in ((kept.flip(0), 0), (kept % EXPERTS + 1, 1)):
        choices[0][2, -1] = instead
        with routing.replay_choices(model, choices, LENGTH, "cpu") as replay:
            model(TOKENS)
        assert replay.counts() == (differing, LAYERS * (LENGTH + 3))
        assert torch.equal(model(TOKENS).logits, plain), "the choice outlives its context"


def test_packed_and_bf16_experts_replay_alike(either_checkpoint):
    """As transformers' own experts do, bit for bit, also in layers that are computed again."""
    stock = loading.load_gpt_oss(either_checkpoint, "eager", packed=False).train()
    config = stock.config
    scores = torch.rand(ROWS, LENGTH, config.num_hidden_layers, config.num_local_experts)
    recorded = list(routing.encode(scores.topk(config.num_experts_per_tok).indices))
    use_stock_experts(stock)
    expected = run_pass(stock, recorded)
    for packed in (True, False):
        model = loading.load_gpt_oss(either_checkpoint, "eager", packed=packed).train()
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
        plain = model(TOKENS).logits
        logits, gradient = run_pass(model, recorded)
        assert torch.equal(logits, expected[0]) and torch.equal(gradient, expected[1])
        assert (plain - logits).abs().max() > 1e-3


def use_stock_experts(model):
    for layer in model.model.layers:
        experts = GptOssExperts(model.config).bfloat16().train()
        experts.load_state_dict(layer.mlp.experts.state_dict())
        layer.mlp.experts = experts


def run_pass(model, recorded):
    """The logits with a recorded routing, and the gradient of the first layer's queries."""
    model.requires_grad_(False)
    model.model.layers[0].self_attn.q_proj.weight.requires_grad_(True)
    with routing.replay_choices(model, recorded, LENGTH, "cpu"):
        logits = model(TOKENS).logits
        logits.float().square().mean().backward()
    return logits, model.model.layers[0].self_attn.q_proj.weight.grad


@pytest.mark.parametrize(
    ("shape", "message"), [((LENGTH, LAYERS + 1, CHOSEN), "4 layers"), ((LENGTH, LAYERS, CHOSEN + 1), "3 experts")]
)
def test_routings_that_do_not_fit_the_model_are_refused(shape, message):
    model = make_small_model()
    routings = [torch.ones(shape, dtype=torch.uint8)] * ROWS
    with pytest.raises(ValueError, match=message), routing.replay_choices(model, routings, LENGTH, "cpu"):
        pass
