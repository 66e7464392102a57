"""The Triton kernels: attention with sinks against a float64 formula, unpacking of MXFP4 against transformers."""

import pytest
import torch

from benchmarks import kernels
from grpo.model import mxfp4
from grpo.stack.problem import UserError

attention_triton = pytest.importorskip("grpo.model.attention_triton")
mxfp4_triton = pytest.importorskip("grpo.model.mxfp4_triton")


@pytest.mark.parametrize(
    ("length", "size", "window"),
    [(1, 16, None), (1, 16, 1), (5, 64, None), (5, 64, 1), (5, 64, 7), (150, 24, None), (150, 24, 7), (150, 24, 200)],
)
def test_attention_and_its_gradients(device, length, size, window):
    # bf16 rounds to 2**-9; the gradient of few sinks is a sum over much rounding.
    limit = 2e-2 if device == "cuda" else 1e-5
    for values, wanted in kernels.attend(device, window, length, size).values():
        assert kernels.relative(values, wanted) < limit or wanted.norm() < limit


def test_the_check_passes_and_lost_sinks_are_noticed(device, monkeypatch):
    gpus = int(device == "cuda")
    assert len(kernels.attention(gpus, 40, 16).numbers["errors"]) == 10
    apply = attention_triton.SinkAttention.apply
    monkeypatch.setattr(
        attention_triton.SinkAttention, "apply", lambda q, k, v, sinks, *rest: apply(q, k, v, sinks - 1e4, *rest)
    )
    with pytest.raises(UserError, match="float64"):
        kernels.attention(gpus, 40, 16)


def test_fully_masked_rows_are_zero_and_have_finite_gradients(device):
    query = torch.randn(1, 2, 9, 16, device=device, requires_grad=True)
    tokens = torch.zeros(1, 9, dtype=torch.bool, device=device)
    sinks = torch.zeros(2, device=device, requires_grad=True)
    result = attention_triton.SinkAttention.apply(query, query, query, sinks, tokens, None, 1.0)
    result.sum().backward()
    assert not result.any() and not query.grad.any() and not sinks.grad.any()


def test_every_byte_with_every_scale_and_one_wrong_value_is_noticed(device, monkeypatch):
    gpus, right, first = int(device == "cuda"), mxfp4_triton.unpack, torch.zeros(1, dtype=torch.long, device=device)
    assert kernels.mxfp4(gpus).numbers["wrong"] == 0
    monkeypatch.setattr(mxfp4_triton, "unpack", lambda *packed: right(*packed).index_fill(1, first, 1))
    with pytest.raises(UserError):
        kernels.mxfp4(gpus)


@pytest.mark.parametrize("part", [(1, 8, 16), (2, 2, 3), (1, 0, 24), (2, 5, 1)])
def test_parts_of_a_tensor(device, part):
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (5, 24, 6, 16), dtype=torch.uint8, generator=generator).narrow(*part)
    scales = torch.randint(0, 256, (5, 24, 6), dtype=torch.uint8, generator=generator).narrow(*part)  # 255 is NaN
    expected = mxfp4.dequantize(blocks, scales).transpose(-1, -2)
    found = mxfp4_triton.unpack(blocks.to(device), scales.to(device)).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
