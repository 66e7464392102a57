"""A platform of vLLM: the CPU, with what vLLM does on GPUs.

Engines of several workers use Ray's executor, which vLLM's own CPU platform replaces by processes of its own. Engines
that are compiled are split at the attention. This package is copied into a folder that Ray's workers import from,
beside the entry point that vLLM looks for.
"""

import shutil
from pathlib import Path

from vllm.platforms.cpu import CpuPlatform

NAME = "ray_on_cpu"
ENTRY_POINTS = f"[vllm.platform_plugins]\n{NAME} = {NAME}:platform\n"


class RayOnCpu(CpuPlatform):
    """Workers are placed on Ray's GPUs, of which a test's cluster only has the number."""

    ray_device_key = "GPU"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        from vllm.config import CompilationMode  # imports the platform

        config, compilation = vllm_config.parallel_config, vllm_config.compilation_config
        executor, mode, backend = config.distributed_executor_backend, compilation.mode, compilation.backend
        super().check_and_update_config(vllm_config)
        config.distributed_executor_backend = "ray" if config.world_size > 1 else executor
        config.worker_cls = f"{NAME}.worker.Worker"
        if mode == CompilationMode.VLLM_COMPILE:
            compilation.mode, compilation.backend, compilation.compile_sizes = mode, backend, []

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return f"{NAME}.passes.Passes"


def platform() -> str:
    """Return the name of the platform's class, as vLLM asks for it."""
    return f"{NAME}.{RayOnCpu.__name__}"


def install(folder: Path) -> None:
    """Copy this package and write its entry point into a folder for PYTHONPATH."""
    shutil.copytree(Path(__file__).parent, folder / NAME)
    distribution = folder / f"{NAME}-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(ENTRY_POINTS)
