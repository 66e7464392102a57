"""Compiles elementwise code into one kernel on a GPU; elsewhere it runs unchanged."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of tensors for GPUs, for all shapes at once. Its first argument tells the device."""

    @functools.cache
    def compile_function() -> Callable[P, R]:  # at its first use: importing the compiler takes seconds
        return torch.compile(function, dynamic=True)

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        first = arguments[0]
        on_gpu = isinstance(first, torch.Tensor) and first.is_cuda
        return (compile_function() if on_gpu else function)(*arguments, **options)

    return call
