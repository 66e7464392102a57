"""Attention with sinks over chunks of queries, against transformers' eager attention in float64."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from grpo.model import attention
from grpo.stack.problem import UserError


@pytest.mark.parametrize("window", [None, 1, 7, 300])
@pytest.mark.parametrize("length", [1, 5, 300, 700])
def test_result_and_gradients_equal_eager(window, length):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 8, length, 16), (3, 2, length, 16), (3, 2, length, 16), (8,)]
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    tokens = torch.ones(3, length, dtype=torch.bool)
    tokens[1, : length // 3] = False
    tokens[2, length - length // 4 :] = False
    mask = attention.SinkMask(tokens, window)
    visible = mask.visible(slice(0, length), slice(0, length))[:, :, 0]
    bias = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    module = types.SimpleNamespace(sinks=inputs[3], num_key_value_groups=4, training=False)

    expected, _ = eager_attention_forward(module, *inputs[:3], bias, 0.3)
    result, _ = attention.attend(module, *inputs[:3], mask, 0.3, s_aux=inputs[3])
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(result, expected)
    for ours, theirs in zip(
        torch.autograd.grad(result, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.fixture(scope="module")
def model():
    attention.register()
    config = GptOssConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=64, num_local_experts=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=50, sliding_window=8, pad_token_id=0,
        experts_implementation="eager",  # transformers 5 has others, which refuse float64
    )  # fmt: skip
    torch.manual_seed(0)
    model = GptOssForCausalLM(config).double().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name.endswith("sinks") else 0.1)
    return model


def compute_log_probs(model, name, ids, padding):
    model.set_attn_implementation(name)
    positions = (padding.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(ids, attention_mask=padding, position_ids=positions).logits.log_softmax(-1)


def test_a_whole_model_equals_eager_with_padding_on_both_sides(model):
    ids = torch.randint(1, 50, (3, 40), generator=torch.Generator().manual_seed(0))
    padding = torch.ones_like(ids)
    padding[1, :9], padding[2, -7:] = 0, 0
    real = padding.bool().unsqueeze(-1)
    ours, eager = (compute_log_probs(model, name, ids, padding) for name in (attention.NAME, "eager"))
    torch.testing.assert_close(ours * real, eager * real)


def make_config(**changes):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 40}
    return GptOssConfig(num_hidden_layers=2, **sizes | changes)


def test_the_check_at_start_accepts_this_attention():
    with torch.no_grad():  # a model may be loaded without gradients
        attention.check(make_config(), torch.device("cpu"))


@pytest.mark.parametrize("fault", ["sinks", "window", "padding", "gradient"])
def test_the_check_at_start_finds_what_is_lost(monkeypatch, fault):
    right = attention.attend

    def attend_wrongly(module, query, key, value, mask, scaling, sinks):
        if fault == "sinks":
            sinks = torch.full_like(sinks, -1e9) + 0 * sinks
        if fault == "window":
            mask = attention.SinkMask(mask.tokens, None)
        if fault == "padding":
            mask = attention.SinkMask(torch.ones_like(mask.tokens), mask.window)
        if fault == "gradient":
            key = key.detach() + 0 * key
        return right(module, query, key, value, mask, scaling, sinks)

    monkeypatch.setattr(attention, "attend", attend_wrongly)
    with pytest.raises(UserError, match="cpu"):
        attention.check(make_config(), torch.device("cpu"))


def test_kernels_in_the_interpreter():
    # In a separate process: Triton reads the variable on import.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/gpu/test_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    checkout = Path(__file__).parents[3]
    ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout, ended.stdout
