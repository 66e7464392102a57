"""Checks that need a GPU: no wait for the device inside a layer, and the same gradients as transformers."""

import pytest
import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssDecoderLayer, GptOssRotaryEmbedding

from grpo.model import attention, experts, mxfp4

SIZES = {"hidden_size": 256, "intermediate_size": 128, "num_local_experts": 16, "num_experts_per_tok": 4}


@pytest.fixture(scope="module")
def layers(gpu):
    """A layer of transformers, and ours with the same weights, packed."""
    attention.register()
    config = GptOssConfig(**SIZES, num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_hidden_layers=2)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    with torch.device("cuda"):
        stock = GptOssDecoderLayer(config, 1).bfloat16().train()
        for parameter in stock.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        ours_config = GptOssConfig(**config.to_dict())
        ours_config._attn_implementation = attention.NAME
        ours = GptOssDecoderLayer(ours_config, 1).bfloat16().train()
        ours.mlp.experts = experts.Experts(config, packed=True)
    state = stock.state_dict()
    for name in ("gate_up_proj", "down_proj"):
        blocks, scales = mxfp4.quantize(state[f"mlp.experts.{name}"])
        state[f"mlp.experts.{name}"].copy_(mxfp4.dequantize(blocks, scales))
        state |= {f"mlp.experts.{name}_blocks": blocks, f"mlp.experts.{name}_scales": scales}
    names = dict(ours.named_parameters())
    for name, parameter in names.items():
        parameter.data = state[name].to("cuda", parameter.dtype if parameter.dtype == torch.uint8 else torch.bfloat16)
    rotary = GptOssRotaryEmbedding(config, device="cuda")
    return stock, ours, rotary


def run_passes(layer, rotary, states, tokens, upstream):
    states = states.clone().requires_grad_()
    length = states.shape[1]
    positions = torch.arange(length, device="cuda")[None]
    mask = attention.make_mask(len(states), length, tokens, q_length=length)
    if layer.self_attn.config._attn_implementation == "eager":
        visible = mask.visible(slice(0, length), slice(0, length))[:, 0]
        mask = torch.zeros_like(visible, dtype=torch.bfloat16).masked_fill(~visible, torch.finfo(torch.bfloat16).min)
    result = layer(states, attention_mask=mask, position_ids=positions, position_embeddings=rotary(states, positions))
    result = result[0] if isinstance(result, tuple) else result
    result.backward(upstream)
    return result.detach(), states.grad


def test_a_layer_equals_transformers(layers):
    stock, ours, rotary = layers
    states = torch.randn(2, 300, 256, device="cuda", dtype=torch.bfloat16)
    tokens = torch.ones(2, 300, dtype=torch.bool, device="cuda")
    tokens[0, :40] = False
    upstream = torch.randn_like(states) * tokens[:, :, None]
    wanted, wanted_gradient = run_passes(stock, rotary, states, tokens, upstream)
    result, gradient = run_passes(ours, rotary, states, tokens, upstream)
    real = tokens[:, :, None]
    for values, expected in ((result * real, wanted * real), (gradient * real, wanted_gradient * real)):
        assert (values - expected).norm() < 0.02 * expected.norm()


def test_a_layer_never_waits_for_the_device(layers):
    _, ours, rotary = layers
    states = torch.randn(1, 257, 256, device="cuda", dtype=torch.bfloat16)
    tokens = torch.ones(1, 257, dtype=torch.bool, device="cuda")
    run_passes(ours, rotary, states, tokens, states)  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_passes(ours, rotary, states, tokens, states)
    finally:
        torch.cuda.set_sync_debug_mode("default")
