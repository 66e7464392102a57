"""Grouped experts, packed and in bf16, against transformers' loop: equal bit for bit on a CPU."""

import pytest
import torch
from peft import LoraConfig
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssTopKRouter

from grpo.model import expert_lora, experts, mxfp4
from grpo.model.routing import WEIGHS_CHOSEN
from tests.grpo.lora.recorded_pass import RecordedPass

# Sizes of experts, chosen experts, hidden and intermediate, as gpt-oss-120b and -20b have them in small.
SHAPES = [(8, 4, 96, 64), (4, 4, 64, 96), (16, 2, 32, 32), (5, 1, 64, 32)]


def make_layer(shape, dtype=torch.bfloat16):
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


def compute_results(router, module, states, upstream, more=()):
    """Return the output, and the gradients of states, router, and more parameters."""
    states = states.clone().requires_grad_()
    given = states.flatten(0, 1) if WEIGHS_CHOSEN else states
    *_, weights, choices = router(given)
    output = module(given, router_indices=choices, routing_weights=weights).view_as(states)
    return output, *torch.autograd.grad(output, [states, *router.parameters(), *more], upstream)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("tokens", "unpacked"), [(1, 1 << 30), (3, 1 << 30), (77, 1 << 30), (77, 1000)])
def test_bit_equal_to_the_loop(shape, tokens, unpacked, monkeypatch):
    """Also if weights are unpacked in parts."""
    monkeypatch.setattr(experts, "UNPACKED_BYTES", unpacked)
    router, stock, *ours = make_layer(shape)
    states, upstream = torch.randn(2, 1, tokens, shape[2]).bfloat16().unbind()
    expected = compute_results(router, stock, states, upstream)
    for module in ours:
        for values, wanted in zip(compute_results(router, module, states, upstream), expected, strict=True):
            assert torch.equal(values, wanted)


def add_adapters(module, rank=3):
    """Give a layer an adapter of drawn values, which do not depend on the layer; return its weights."""
    torch.manual_seed(2)
    for name, shape in module.shapes.items():
        lora = module.adapters[name] = expert_lora.ExpertLora(shape, rank, module.down_proj_bias)
        lora.update_layer("default", 4, 6.0, LoraConfig())
        torch.nn.init.normal_(lora.lora_B["default"].weight, std=0.1)
    return list(module.adapters.parameters())


def test_packed_and_bf16_layers_are_bit_equal_with_adapters():
    router, _, plain, packed = make_layer(SHAPES[0])
    states, upstream = torch.randn(2, 1, 50, 96).bfloat16().unbind()
    got = []
    for module in (plain, packed):
        adapter = add_adapters(module)
        output, *gradients = compute_results(router, module, states, upstream, adapter)
        assert all(gradient.any() for gradient in gradients)
        got.append([output, *gradients])
    assert all(map(torch.equal, *got))


@pytest.mark.parametrize("shape", SHAPES)
def test_adapters_are_those_of_merged_weights_in_float64(shape):
    """transformers' loop, with weights W + scale * A^T B^T of each expert."""
    router, stock, _, packed = make_layer(shape, torch.float32)
    adapter = add_adapters(packed)
    states, upstream = torch.randn(2, 1, 7, shape[2]).unbind()  # too few tokens for all experts
    got = compute_results(router, packed, states, upstream, adapter)

    wide = [parameter.detach().double().requires_grad_() for parameter in adapter]
    stock.double()
    for number, name in enumerate(("gate_up_proj", "down_proj")):
        a, b = wide[2 * number : 2 * number + 2]
        weight = getattr(stock, name).detach()
        delattr(stock, name)
        setattr(stock, name, weight + 1.5 * (b @ a).transpose(1, 2))
    expected = compute_results(router.double(), stock, states.double(), upstream.double(), wide)
    for values, wanted in zip(got, expected, strict=True):
        assert (values - wanted).norm() <= 1e-5 * wanted.norm()


def test_a_layer_with_adapters_waits_for_no_value():
    router, *_, packed = make_layer(SHAPES[0])
    adapter = add_adapters(packed)
    with RecordedPass() as recorded:  # which asserts it of each operation
        compute_results(router, packed, torch.randn(1, 5, 96).bfloat16(), torch.ones(1, 5, 96).bfloat16(), adapter)
    assert "_grouped_mm" in recorded.launches and not any(weight.requires_grad for weight in packed.parameters(False))


def test_a_pass_keeps_no_unpacked_weight():
    """The backward pass unpacks again: of the weights, the graph holds the packed parameters themselves."""
    router, *_, packed = make_layer(SHAPES[0])
    states, kept = torch.randn(1, 3, 96).bfloat16().requires_grad_(), []
    given = states.flatten(0, 1) if WEIGHS_CHOSEN else states
    *_, weights, choices = router(given)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        packed(given, router_indices=choices, routing_weights=weights)
    addresses = {parameter.data_ptr() for parameter in packed.parameters()}
    assert sum(tensor.dtype == torch.uint8 and tensor.data_ptr() in addresses for tensor in kept) == 4
    smallest = packed.down_proj_blocks.numel() * 2
    assert all(tensor.numel() < smallest for tensor in kept if tensor.dtype != torch.uint8)
