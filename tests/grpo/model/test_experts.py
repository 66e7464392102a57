"""Grouped experts, packed and in bf16, against transformers' loop: equal bit for bit on a CPU."""

import pytest
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter

from grpo.model import experts, mxfp4
from grpo.model.routing import WEIGHS_CHOSEN

# Sizes of experts, chosen experts, hidden and intermediate, as gpt-oss-120b and -20b have them in small.
SHAPES = [(8, 4, 96, 64), (4, 4, 64, 96), (16, 2, 32, 32), (5, 1, 64, 32)]


def layer(shape, dtype=torch.bfloat16):
    """Return a router, transformers' experts, and ours with the same weights in bf16 and packed."""
    count, chosen, hidden, inner = shape
    config = GptOssConfig(
        num_local_experts=count, num_experts_per_tok=chosen, hidden_size=hidden, intermediate_size=inner
    )
    torch.manual_seed(0)
    router, stock = GptOssTopKRouter(config).to(dtype), GptOssExperts(config).to(dtype).train()
    for parameter in [*router.parameters(), *stock.parameters()]:
        torch.nn.init.normal_(parameter, std=0.3)
    packed, plain = experts.Experts(config, packed=True), experts.Experts(config, packed=False)
    for name in ("gate_up_proj", "down_proj"):
        blocks, scales = mxfp4.quantize(getattr(stock, name).data)
        weight = mxfp4.dequantize(blocks, scales, dtype=dtype)
        getattr(stock, name).data = getattr(plain, name).data = weight
        getattr(packed, f"{name}_blocks").data, getattr(packed, f"{name}_scales").data = blocks, scales
        for module in (plain, packed):
            getattr(module, f"{name}_bias").data = getattr(stock, f"{name}_bias").data
    return router, stock, plain, packed


def results(router, module, states, upstream):
    """Return the output, and the gradients of states and router."""
    states = states.clone().requires_grad_()
    given = states.flatten(0, 1) if WEIGHS_CHOSEN else states
    *_, weights, choices = router(given)
    output = module(given, router_indices=choices, routing_weights=weights).view_as(states)
    return output, *torch.autograd.grad(output, [states, *router.parameters()], upstream)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 3, 77])
def test_bit_equal_to_the_loop(shape, tokens):
    router, stock, *ours = layer(shape)
    states, upstream = torch.randn(2, 1, tokens, shape[2]).bfloat16().unbind()
    expected = results(router, stock, states, upstream)
    for module in ours:
        for values, wanted in zip(results(router, module, states, upstream), expected, strict=True):
            assert torch.equal(values, wanted)


def test_bit_equal_in_parts(monkeypatch):
    router, stock, _, packed = layer(SHAPES[0])
    monkeypatch.setattr(experts, "UNPACKED_BYTES", 1000)
    states, upstream = torch.randn(2, 1, 50, 96).bfloat16().unbind()
    for values, wanted in zip(
        results(router, packed, states, upstream), results(router, stock, states, upstream), strict=True
    ):
        assert torch.equal(values, wanted)


def test_gradients_against_float64():
    router, stock, _, packed = layer(SHAPES[0], torch.float32)
    states, upstream = torch.randn(2, 1, 50, 96).unbind()
    got = results(router, packed, states, upstream)
    expected = results(router.double(), stock.double(), states.double(), upstream.double())
    for values, wanted in zip(got, expected, strict=True):
        assert (values - wanted).norm() < 1e-5 * wanted.norm()


def test_weights_are_packed_and_frozen():
    *_, packed = layer(SHAPES[0])
    sizes = {name: parameter.numel() * parameter.itemsize for name, parameter in packed.named_parameters()}
    in_bf16 = 2 * 8 * (96 * 128 + 64 * 96)
    assert sum(size for name, size in sizes.items() if "_bias" not in name) == in_bf16 * 17 / 64
    assert not any(parameter.requires_grad for parameter in packed.parameters())


def test_a_pass_keeps_no_unpacked_weight():
    """The backward pass unpacks again: of the weights, the graph holds the packed parameters themselves."""
    router, *_, packed = layer(SHAPES[0])
    states, kept = torch.randn(1, 3, 96).bfloat16().requires_grad_(), []
    given = states.flatten(0, 1) if WEIGHS_CHOSEN else states
    *_, weights, choices = router(given)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        packed(given, router_indices=choices, routing_weights=weights)
    addresses = {parameter.data_ptr() for parameter in packed.parameters()}
    assert sum(tensor.dtype == torch.uint8 and tensor.data_ptr() in addresses for tensor in kept) == 4
    smallest = packed.down_proj_blocks.numel() * 2
    assert all(tensor.numel() < smallest for tensor in kept if tensor.dtype != torch.uint8)
