"""bf16 products through wider numbers are the exact products, rounded once."""

import pytest
import torch

from grpo.model import cpu_matmul


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def replaced_kernels(request):
    library = cpu_matmul.replace_kernels(request.param)
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
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
def test_other_dtypes_are_left_alone(name, dtype, wide):
    if name == "_grouped_mm":
        dtype = {torch.float64: torch.float16}.get(dtype, dtype)  # the dtypes that it takes
    inputs = make_operands(name, dtype)
    expected = getattr(torch, name)(*inputs)
    library = cpu_matmul.replace_kernels(wide)
    product = getattr(torch, name)(*inputs)
    library._destroy()
    assert torch.equal(product, expected)


@pytest.mark.parametrize("replaced_kernels", [torch.float64], indirect=True, ids=str)
def test_engines_give_a_row_the_same_product_in_every_batch(replaced_kernels):
    """Through float32, a few of these 370,000 numbers differ on the CPUs that were tried."""
    x, weight = torch.randn(32, 384, dtype=torch.bfloat16), torch.randn(2, 384, 4096, dtype=torch.bfloat16)
    whole, groups = x @ weight[0], torch._grouped_mm(x, weight, offs=torch.tensor([20, 32], dtype=torch.int32))
    for rows in (1, 2, 3, 5, 7, 12):
        assert torch.equal(x[:rows] @ weight[0], whole[:rows])
        few = slice(20 - rows, 20 + rows)  # as many of each group
        ends = torch.tensor([rows, 2 * rows], dtype=torch.int32)
        assert torch.equal(torch._grouped_mm(x[few], weight, offs=ends), groups[few])


def test_of_two_widths_the_last_one_counts(monkeypatch):
    monkeypatch.setattr(cpu_matmul, "is_cpu_stack", lambda: True)
    for wide in (torch.float64, torch.float32, torch.float64):
        cpu_matmul.install(wide)
        assert list(cpu_matmul.INSTALLED) == [wide]
