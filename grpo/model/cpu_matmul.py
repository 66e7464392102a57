"""Matrix products in bf16 on CPUs that have no bf16 arithmetic: through float32, 5 to 30 times faster.

PyTorch hands bf16 products to oneDNN only where the CPU has AVX-512; elsewhere a plain loop computes them, and a small
run on such a machine spends most of its time there. The products here are of the same bf16 numbers, added up in
float32 and rounded to bf16 once, which is what a GPU does.
"""

import functools
import warnings
from typing import Any

import torch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def is_needed() -> bool:
    """Say whether PyTorch would compute bf16 products on this CPU by its plain loop."""
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@functools.cache
def install() -> torch.library.Library | None:
    """Replace PyTorch's kernels in this process, for forward and backward passes alike; a second call does nothing.

    Returns:
        What keeps the kernels in place, or None where they are not needed.
    """
    return replace_kernels() if is_needed() else None


def replace_kernels() -> torch.library.Library:
    """Route bf16 products on the CPU through float32 until the result is destroyed; other dtypes stay as they are."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was a kernel before is the point
        for name in PRODUCTS:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, functools.partial(_through_float32, kernel), "CPU", with_keyset=True)
    return library


def _through_float32(kernel: Any, keyset: Any, *operands: Any, **factors: Any) -> torch.Tensor:
    if operands[0].dtype != torch.bfloat16:
        return kernel.call_boxed(keyset, *operands, **factors)
    wide = [operand.float() if isinstance(operand, torch.Tensor) else operand for operand in operands]
    return kernel.call_boxed(keyset, *wide, **factors).to(torch.bfloat16)
