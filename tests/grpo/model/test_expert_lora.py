"""Adapters of the experts against a loop in float64, and against PEFT's own on transformers' experts."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM

from grpo.model import expert_lora, experts, loading, mxfp4
from grpo.model.routing import WEIGHS_CHOSEN

CONFIG = GptOssConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    num_local_experts=8,
    num_experts_per_tok=2,
    attn_implementation="eager",
)


def reference(x, ends, weight, a, b, scale):
    """Return each expert's product of its rows, one expert after the other."""
    starts = [0, *ends[:-1].tolist()]
    parts = [
        x[start:end] @ weight[e] + scale * (x[start:end] @ a[e].T) @ b[e].T
        for e, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True))
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("rank", [1, 3, 8, 16])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_against_float64_per_expert(rank, dtype, tolerance):
    torch.manual_seed(0)
    weight = torch.randn(5, 32, 64, dtype=dtype)
    lora = expert_lora.ExpertLora(weight.shape, rank, weight)
    lora.update_layer("default", 4, 6.0, LoraConfig())
    a, b = lora.lora_A["default"].weight, lora.lora_B["default"].weight
    nn.init.normal_(b)
    x, upstream = torch.randn(20, 32, dtype=dtype).requires_grad_(), torch.randn(20, 64, dtype=dtype)
    ends = torch.tensor([3, 3, 12, 20, 20], dtype=torch.int32)  # the second and the last expert get no row
    product = torch._grouped_mm(x, weight, offs=ends)
    got = (values := lora(product, x, ends)), *torch.autograd.grad(values, [x, a, b], upstream)

    wide = [tensor.detach().double().requires_grad_() for tensor in (x, a, b)]
    expected = reference(wide[0], ends, weight.double(), *wide[1:], 1.5)
    expected = expected, *torch.autograd.grad(expected, wide, upstream.double())
    for mine, wanted in zip(got, expected, strict=True):
        assert mine.shape == wanted.shape and (mine - wanted).norm() < tolerance * wanted.norm()
    for gradient in got[2:]:
        assert not gradient[[1, 4]].any() and all(gradient[e].any() for e in (0, 2, 3))
