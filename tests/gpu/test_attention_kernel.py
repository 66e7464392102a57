"""The Triton kernels of attention with sinks, against a plain float64 formula."""

import pytest
import torch

from grpo.stack.problem import UserError
from scripts.gpu_check import kernels

attention_triton = pytest.importorskip("grpo.model.attention_triton")


@pytest.mark.parametrize(
    ("length", "size", "window"),
    [(1, 16, None), (1, 16, 1), (5, 64, None), (5, 64, 1), (5, 64, 7), (150, 24, None), (150, 24, 7), (150, 24, 200)],
)
def test_result_and_gradients(device, length, size, window):
    # bf16 rounds to 2**-9; the gradient of few sinks is a sum over much rounding.
    limit = 2e-2 if device == "cuda" else 1e-5
    for values, wanted in kernels.attend(device, window, length, size):
        assert kernels.relative(values, wanted) < limit or wanted.norm() < limit


def test_the_rung_passes_and_lost_sinks_are_noticed(device, monkeypatch):
    gpus = int(device == "cuda")
    assert len(kernels.attention(gpus, 40, 16).numbers["errors"]) == 10
    apply = attention_triton.SinkAttention.apply

    def apply_without_sinks(query, key, value, sinks, *rest):
        return apply(query, key, value, sinks - 1e4, *rest)

    monkeypatch.setattr(attention_triton.SinkAttention, "apply", apply_without_sinks)
    with pytest.raises(UserError, match="differs from float64"):
        kernels.attention(gpus, 40, 16)


def test_fully_masked_rows_are_zero_and_have_finite_gradients(device):
    query = torch.randn(1, 2, 9, 16, device=device, requires_grad=True)
    tokens = torch.zeros(1, 9, dtype=torch.bool, device=device)
    sinks = torch.zeros(2, device=device, requires_grad=True)
    result = attention_triton.SinkAttention.apply(query, query, query, sinks, tokens, None, 1.0)
    result.sum().backward()
    assert not result.any()
    assert not query.grad.any()
    assert not sinks.grad.any()
