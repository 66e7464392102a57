"""bf16 products through float32 are the exact products, rounded once, forwards and backwards."""

import pytest
import torch

from grpo.model import cpu_matmul
from grpo.stack.checkout import is_cpu_stack


@pytest.fixture
def replaced_kernels():
    library = cpu_matmul.replace_kernels()
    yield
    library._destroy()


def make_operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if name == "_grouped_mm":
        x, weight = torch.randn(17, 64, generator=generator), torch.randn(3, 64, 32, generator=generator)
        return [x.to(dtype), weight.to(dtype), torch.tensor([5, 5, 17], dtype=torch.int32)]
    batch = (3,) if name in ("bmm", "baddbmm") else ()
    shapes = [(17, 65), (65, 33)] if name in ("mm", "bmm") else [(17, 33), (17, 65), (65, 33)]
    return [torch.randn(*batch, *shape, generator=generator).to(dtype) for shape in shapes]


def compute_exact_product(name: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the product in float64, which grouped products do not have."""
    if name != "_grouped_mm":
        return getattr(torch, name)(*(value.double() for value in inputs))
    x, weight, ends = inputs
    parts = x.double().tensor_split(ends[:-1].tolist())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight.double(), strict=True)])


@pytest.mark.parametrize("name", cpu_matmul.PRODUCTS)
def test_a_product_is_rounded_once(replaced_kernels, name):
    inputs = make_operands(name, torch.bfloat16)
    exact = compute_exact_product(name, inputs)
    product = getattr(torch, name)(*inputs)
    assert product.dtype == torch.bfloat16
    # Half a unit in the last of 8 bits, and what adding up in float32 loses.
    assert ((product.double() - exact).abs() <= exact.abs() * 2**-8 * 1.01 + 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", cpu_matmul.PRODUCTS)
def test_other_dtypes_are_left_alone(name, dtype):
    if name == "_grouped_mm":
        dtype = {torch.float64: torch.float16}.get(dtype, dtype)  # the dtypes that it takes
    inputs = make_operands(name, dtype)
    expected = getattr(torch, name)(*inputs)
    library = cpu_matmul.replace_kernels()
    product = getattr(torch, name)(*inputs)
    library._destroy()
    assert torch.equal(product, expected)


@pytest.mark.skipif(not is_cpu_stack(), reason="only the CPU stack sets MKL_CBWR")
def test_a_row_has_the_same_product_in_every_batch():
    """Otherwise an engine's log-probs depend on which calls it answers together. MKL_CBWR ensures it."""
    x, weight = torch.randn(64, 65), torch.randn(65, 33)
    whole = x @ weight
    for rows in (1, 2, 3, 7, 16, 63):
        assert torch.equal(x[:rows] @ weight, whole[:rows])
