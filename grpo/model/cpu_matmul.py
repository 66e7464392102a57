"""bf16 matrix products through float32, which are fast on every CPU. Only the CPU stack has them.

PyTorch uses oneDNN for bf16 products if the CPU has AVX-512, and a plain loop elsewhere, which is 5 to 30 times slower.
oneDNN compiles code for each shape, which costs a tiny run 10% more CPU time and half a GB. These kernels multiply the
same bf16 numbers, accumulate in float32 and round to bf16 once, as a GPU does.
"""

import functools
import warnings
from typing import Any

import torch

from grpo.stack.checkout import is_cpu_stack

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")


@functools.cache
def install() -> torch.library.Library | None:
    """Replace PyTorch's kernels in this process, forward and backward. A second call does nothing.

    Returns:
        The handle that keeps the kernels in place, or None on a GPU stack.
    """
    return replace_kernels() if is_cpu_stack() else None


def replace_kernels() -> torch.library.Library:
    """Route bf16 products on the CPU through float32 until the result is destroyed. Other dtypes are unaffected."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that a kernel existed before; replacing it is the point
        for name in PRODUCTS:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, functools.partial(_compute_in_float32, kernel), "CPU", with_keyset=True)
        kernel = torch.library.get_kernel("aten::addmm_", "CPU")
        library.impl("addmm_", functools.partial(_add_through_float32, kernel), "CPU", with_keyset=True)
    return library


def _compute_in_float32(kernel: Any, keyset: Any, *operands: Any, **factors: Any) -> torch.Tensor:
    if operands[0].dtype != torch.bfloat16:
        return kernel.call_boxed(keyset, *operands, **factors)
    wide = [_widen(operand) for operand in operands]
    return kernel.call_boxed(keyset, *wide, **factors).to(torch.bfloat16)


def _add_through_float32(
    kernel: Any, keyset: Any, result: torch.Tensor, *operands: Any, **factors: Any
) -> torch.Tensor:
    """Do the same where a product is added in place."""
    total = _compute_in_float32(kernel, keyset, result, *operands, **factors)
    return result.copy_(total) if result.dtype == torch.bfloat16 else total


def _widen(operand: Any) -> Any:
    """Return a bf16 tensor in float32; others, such as the ends of a grouped product's groups, as they are."""
    is_bf16 = isinstance(operand, torch.Tensor) and operand.dtype == torch.bfloat16
    return operand.float() if is_bf16 else operand
