"""A stand-in for a CUDA graph: it has the operations of a pass, and no Python of the code that launched them."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class RecordedPass(TorchDispatchMode):
    """Records the operations inside its context, with the addresses of their tensors.

    Views are no launches, so they are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, tuple[torch.Tensor, ...]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        by_number = function is torch.ops.aten.index.Tensor and all(i is None or not is_mask(i) for i in args[1])
        assert by_number or not WAITS & set(function.tags), f"{function} waits for the GPU"
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self._calls.append((function, args, kwargs or {}, make_tuple(result)))
        return result

    @property
    def launches(self) -> list[str]:
        """The names of the operations, in their order."""
        return [function.overloadpacket.__name__ for function, *_ in self._calls]

    def replay(self) -> None:
        """Compute all results again, each at its address."""
        for function, args, kwargs, results in self._calls:
            for again, result in zip(make_tuple(function(*args, **kwargs)), results, strict=True):
                if again.data_ptr() != result.data_ptr():
                    result.copy_(again)


def is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def make_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
