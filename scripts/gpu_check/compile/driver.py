"""Takes the place of Triton's CUDA driver: kernels are compiled for a GPU that is not there, and never run.

It changes the whole process, so it belongs in one of its own.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.driver import CudaDriver

from scripts.gpu_check.compile.report import Card

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def install(card: Card, compiled: Callable[[str, int, int, int], None]) -> None:
    """Put the stub in the driver's place, and let PyTorch describe the card.

    Args:
        compiled: called with each new kernel's name, registers and bytes of local memory a thread, and bytes of shared
            memory a block.
    """
    properties: Any = SimpleNamespace(
        multi_processor_count=card.multiprocessors, shared_memory_per_block_optin=card.shared_memory
    )
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: card.capability
    CudaDriver.is_active = staticmethod(lambda: True)  # without it, vLLM turns its kernels off
    triton.runtime.driver.set_active(_Driver(card, compiled))


def resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers, and its bytes of local memory, which are spills: Triton has no other use for it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_TOOLS / "cuobjdump"), "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", printed)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


class _Utils:
    def __init__(self, card: Card, compiled: Callable[[str, int, int, int], None]) -> None:
        self._card, self._compiled = card, compiled

    def load_binary(self, name: str, cubin: bytes, shared: int, _: int) -> tuple[int, int, int, int, int]:
        registers, spilled = resources(cubin)
        self._compiled(name, registers, spilled, shared)
        return 1, 1, registers, spilled // 4, 1024  # module, function, registers, spilled words, threads at most

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": self._card.shared_memory, "multiprocessor_count": self._card.multiprocessors}


class _Launcher:
    def __init__(self, *_: Any) -> None: ...

    def __call__(self, *_: Any) -> None: ...


class _Driver(DriverBase):
    launcher_cls = _Launcher

    def __init__(self, card: Card, compiled: Callable[[str, int, int, int], None]) -> None:
        major, minor = card.capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)
        self.utils = _Utils(card, compiled)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        raise NotImplementedError("nothing runs here, so nothing can be timed")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0
