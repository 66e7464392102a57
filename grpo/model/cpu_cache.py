"""An engine's key/value cache on a CPU takes memory as it fills. vLLM writes zeros into all of it at the start."""

import ctypes
import functools
import mmap
from typing import Any

import torch
from vllm.v1.worker.gpu_worker import Worker


@functools.cache
def install() -> None:
    """Give the zeros of a new cache back to the system in this process. A second call does nothing."""
    original = Worker.initialize_from_config

    def initialize_and_give_back(self: Worker, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        runner: Any = self.model_runner
        for cache in runner.kv_caches:
            give_back_zeros(cache)

    Worker.initialize_from_config = initialize_and_give_back  # type: ignore[method-assign]


def give_back_zeros(tensor: torch.Tensor) -> None:
    """Free the memory under a tensor of zeros on a CPU. The system gives it again, as zeros, where it is used."""
    if tensor.device.type == "cpu":
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if (size := end // mmap.PAGESIZE * mmap.PAGESIZE - first) > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
