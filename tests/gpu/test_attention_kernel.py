"""The Triton kernels of attention with sinks, against a plain float64 formula."""

import pytest
import torch

from grpo.model.attention import SinkMask
from grpo.model.attention_check import definition


@pytest.fixture
def kernel(device):
    from grpo.model.attention_triton import SinkAttention

    return SinkAttention.apply


def relative(values, expected):
    return ((values.cpu().double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("window", [None, 1, 7, 200])
@pytest.mark.parametrize(("length", "size"), [(1, 16), (5, 64), (150, 24)])
def test_result_and_gradients(kernel, device, window, length, size):
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = [(3, length, 4, size), (3, length, 2, size), (3, length, 2, size)]
    exact = [torch.randn(shape, generator=generator).to(dtype).double().transpose(1, 2) for shape in shapes]
    exact.append(torch.randn(4, generator=generator).to(dtype).double())
    tokens = torch.ones(3, length, dtype=torch.bool)
    tokens[1, : length // 3] = False  # padded on the left
    tokens[2, length - length // 4 :] = False  # and on the right
    given = [values.to(device, dtype).requires_grad_() for values in exact]
    exact = [values.requires_grad_() for values in exact]

    expected = definition(*exact, SinkMask(tokens, window), 0.3)
    result = kernel(*given, tokens.to(device), window, 0.3)
    gradient = torch.randn(expected.shape, generator=generator).to(dtype)
    of_expected = torch.autograd.grad(expected, exact, gradient.double())
    of_result = torch.autograd.grad(result, given, gradient.to(device))

    # bf16 rounds to 2**-9; the gradient of few sinks is a sum over much rounding.
    limit = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert relative(result, expected) < limit
    for values, wanted in zip(of_result, of_expected, strict=True):
        assert relative(values, wanted) < limit or wanted.norm() < limit


def test_fully_masked_rows_are_zero_and_have_finite_gradients(kernel, device):
    query = torch.randn(1, 2, 9, 16, device=device, requires_grad=True)
    tokens = torch.zeros(1, 9, dtype=torch.bool, device=device)
    sinks = torch.zeros(2, device=device, requires_grad=True)
    result = kernel(query, query, query, sinks, tokens, None, 1.0)
    result.sum().backward()
    assert not result.any()
    assert not query.grad.any()
    assert not sinks.grad.any()
