"""Compile the Triton kernels of a run for an H100 that need not be there, and print what each one takes as JSON.

    python -m benchmarks.compiled

The launches are those of the actor and of vLLM's MXFP4 experts. A stub takes the place of the CUDA driver: Triton's
ptxas makes machine code, and nothing runs. Kernels must compile and fit in shared memory, and ours must not spill.

Exit code: 0 no fault; 1 a fault; 2 invalid call.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpo.stack import command

MULTIPROCESSORS, SHARED_MEMORY = 132, 227 << 10  # of an H100; shared memory in bytes of a block
Part = tuple[str, Callable[[], None]]  # such as "actor: attention", and what launches its kernels


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code. The stub stays in this process."""
    command.parser("benchmarks.compiled", __doc__).parse_args(argv)
    with tempfile.TemporaryDirectory() as cache:  # a cached kernel would not be compiled
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
        os.environ["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"  # vLLM 0.15 makes it even for a model without such
        report = compile_all(_list_parts)
    print(json.dumps(report, indent=1))
    return int(bool(report["faults"]))


def compile_all(parts: Callable[[], Iterator[Part]]) -> dict[str, Any]:
    """Return the kernels of parts, which are made once the stub is in place; what was skipped; faults, as spills."""
    versions = {one.name: one.version for one in distributions() if one.name in ("torch", "triton", "vllm")}
    report: dict[str, Any] = {"versions": versions, "kernels": [], "skipped": {}, "faults": []}
    part = ""

    def load_binary(name: str, cubin: bytes, shared: int, _: int) -> tuple[int, int, int, int, int]:
        registers, spilled = _read_resources(cubin)
        kernel = {"part": part, "name": name, "registers": registers, "spilled": spilled, "shared": shared}
        report["kernels"].append(kernel)
        if spilled and part.startswith("actor:"):
            report["faults"].append(f"{part}: {name} spills {spilled} bytes")
        return 1, 1, registers, spilled // 4, 1024  # module, function, registers, spilled words, threads at most

    _install(load_binary)
    for part, launch in parts():
        try:
            launch()
        except ModuleNotFoundError as missing:
            report["skipped"][part] = str(missing)
        except Exception as error:  # each part is its own verdict
            traceback.print_exc()
            # Triton quotes the kernel, and marks the line with a caret under it.
            marked = re.findall(r"^(.*)\n *\^ *$", str(error), re.MULTILINE) or [str(error)]
            report["faults"].append(f"{part}: {type(error).__name__}: {marked[-1].strip()}")
    return report


def _list_parts() -> Iterator[Part]:
    from transformers import GptOssConfig

    from benchmarks import compiled_launches as launches
    from grpo.model.released import RELEASED
    from scripts.tiny_model.checkpoint import tiny_config

    launches.simulate_card()
    models = {name.rpartition("/")[2]: GptOssConfig(**shape.config()) for name, shape in RELEASED.items()}
    models["tiny"] = tiny_config(512)
    for name, config in models.items():
        yield f"actor: attention of {name}", functools.partial(launches.actor_attention, config)
        yield f"actor: MXFP4 experts of {name}", functools.partial(launches.actor_experts, config)
        for workers in (1, 2):
            part = f"engine: MXFP4 experts of {name}, TP={workers}"
            yield part, functools.partial(launches.engine_experts, config, workers)
    for name, config in models.items():  # last, since it changes the layout
        yield f"engine with --actor_shard engine: {name}", functools.partial(launches.engine_experts, config, keep=True)


def _read_resources(cubin: bytes) -> tuple[int, int]:
    """Return a kernel's registers, and its bytes of local memory, which are spills: Triton has no other use for it."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", printed)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


def _install(load_binary: Callable[..., Any]) -> None:
    """Put a stub in the driver's place, and let PyTorch describe the card."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.backends.nvidia.driver import CudaDriver

    described = {"max_shared_mem": SHARED_MEMORY, "multiprocessor_count": MULTIPROCESSORS}

    class Stub(DriverBase):
        def __init__(self) -> None:
            self.utils = SimpleNamespace(load_binary=load_binary, get_device_properties=lambda _: described)
            self.launcher_cls = lambda *_: lambda *_: None

        is_active = classmethod(lambda cls: True)
        map_python_to_cpp_type = staticmethod(lambda ty: ty)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_active_torch_device = staticmethod(lambda: torch.device("meta"))
        get_benchmarker = get_current_device = get_current_stream = staticmethod(lambda *_: 0)

    properties: Any = SimpleNamespace(
        multi_processor_count=MULTIPROCESSORS, shared_memory_per_block_optin=SHARED_MEMORY
    )
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    CudaDriver.is_active = staticmethod(lambda: True)  # without it, vLLM turns its kernels off
    triton.runtime.driver.set_active(Stub())


if __name__ == "__main__":
    sys.exit(main())
