"""bf16 products through float32 are the exact products, rounded once, forwards and backwards."""

import os
import subprocess
import sys

import pytest
import torch

from grpo.model import cpu_matmul


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


def test_factors_and_layouts(replaced_kernels):
    bias, a, b = make_operands("addmm", torch.bfloat16)
    exact = 0.5 * bias.double() + 2 * (a.double() @ b.double())
    product = torch.addmm(bias, a, b.t().contiguous().t(), beta=0.5, alpha=2)
    assert (product.double() - exact).abs().max() <= exact.abs().max() * 2**-8
    assert torch.nn.functional.linear(a, b.t(), bias[0]).shape == (17, 33)


def test_a_product_that_is_added_in_place(replaced_kernels):
    total, a, b = make_operands("addmm", torch.bfloat16)
    expected = torch.addmm(total, a, b, alpha=2)
    assert total.addmm_(a, b, alpha=2) is total and torch.equal(total, expected)
    wide = [value.float() for value in make_operands("addmm", torch.bfloat16)]
    expected = torch.addmm(*wide, alpha=2)
    assert wide[0].addmm_(*wide[1:], alpha=2) is wide[0] and torch.equal(wide[0], expected)


@pytest.mark.parametrize("allowed", ["AVX2", "AVX512_CORE"])
def test_installed_only_if_pytorch_would_use_its_plain_loop(allowed):
    """This is the case if the CPU, or the user's settings, keep oneDNN from using bf16."""
    script = "from grpo.model import cpu_matmul; print(cpu_matmul.is_needed(), cpu_matmul.install() is not None)"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": allowed}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    needed, installed = done.stdout.split()
    assert needed == installed == str(allowed == "AVX2" or cpu_matmul.is_needed())
