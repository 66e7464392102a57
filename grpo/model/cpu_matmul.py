"""bf16 matrix products through wider numbers, which are fast on every CPU. Only the CPU stack has them.

PyTorch uses oneDNN for bf16 products if the CPU has AVX-512, and a plain loop elsewhere, which is 5 to 30 times slower.
oneDNN compiles code for each shape, which costs a tiny run 10% more CPU time and half a GB. These kernels multiply the
same bf16 numbers, accumulate in wider ones and round to bf16 once, as a GPU does.

Trainers accumulate in float32. In which order MKL adds depends on the number of rows, so a row in another batch
sometimes rounds to another number. Engines batch rows as they arrive, so they accumulate in float64, which takes twice
as long: bf16 keeps 8 of its 53 bits, which the order practically never changes.
"""

import functools
import warnings
from typing import Any

import torch

from grpo.stack.checkout import is_cpu_stack

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm")
INSTALLED: dict[torch.dtype, torch.library.Library] = {}  # at most one, which keeps the kernels in place


def install(wide: torch.dtype) -> None:
    """Replace PyTorch's kernels in this process, forward and backward. Does nothing on a GPU stack.

    Args:
        wide: as of :func:`replace_kernels`. Of several calls, the last one counts.
    """
    if is_cpu_stack() and wide not in INSTALLED:
        uninstall()
        INSTALLED[wide] = replace_kernels(wide)


def uninstall() -> None:
    """Restore PyTorch's kernels."""
    while INSTALLED:
        INSTALLED.popitem()[1]._destroy()


def replace_kernels(wide: torch.dtype) -> torch.library.Library:
    """Route bf16 products on the CPU through a wider dtype until the result is destroyed. Other dtypes are unaffected.

    Args:
        wide: float32 or float64.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that a kernel existed before; replacing it is the point
        for name in PRODUCTS:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            compute = _multiply_groups if (name, wide) == ("_grouped_mm", torch.float64) else _compute_wide
            library.impl(name, functools.partial(compute, kernel, wide), "CPU", with_keyset=True)
        kernel = torch.library.get_kernel("aten::addmm_", "CPU")
        library.impl("addmm_", functools.partial(_add_wide, kernel, wide), "CPU", with_keyset=True)
    return library


def _compute_wide(kernel: Any, wide: torch.dtype, keyset: Any, *operands: Any, **factors: Any) -> torch.Tensor:
    if operands[0].dtype != torch.bfloat16:
        return kernel.call_boxed(keyset, *operands, **factors)
    widened = [_widen(operand, wide) for operand in operands]
    return kernel.call_boxed(keyset, *widened, **factors).to(torch.bfloat16)


def _multiply_groups(
    kernel: Any, wide: torch.dtype, keyset: Any, x: torch.Tensor, weight: torch.Tensor, ends: Any = None, *more: Any
) -> torch.Tensor:
    """Multiply each group of rows by its matrix, since PyTorch has no grouped product in float64.

    Other shapes, such as those of a gradient, go through float32.
    """
    if x.dtype != torch.bfloat16 or x.dim() != 2 or weight.dim() != 3 or any(each is not None for each in more):
        return _compute_wide(kernel, torch.float32, keyset, x, weight, ends, *more)
    groups = zip(x.to(wide).tensor_split(ends[:-1].tolist()), weight.to(wide), strict=True)
    return torch.cat([rows @ matrix for rows, matrix in groups]).to(torch.bfloat16)


def _add_wide(
    kernel: Any, wide: torch.dtype, keyset: Any, result: torch.Tensor, *operands: Any, **factors: Any
) -> torch.Tensor:
    """Do the same where a product is added in place."""
    total = _compute_wide(kernel, wide, keyset, result, *operands, **factors)
    return result.copy_(total) if result.dtype == torch.bfloat16 else total


def _widen(operand: Any, wide: torch.dtype) -> Any:
    """Return a bf16 tensor in a wider dtype; others, such as the ends of a grouped product's groups, as they are."""
    is_bf16 = isinstance(operand, torch.Tensor) and operand.dtype == torch.bfloat16
    return operand.to(wide) if is_bf16 else operand
