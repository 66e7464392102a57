"""The models of the rungs at full size: gpt-oss-120b where a GPU holds it, else gpt-oss-20b."""

from collections.abc import Callable

from grpo.model.architecture import Architecture
from grpo.model.released import RELEASED
from scripts.gpu_check.rung import Skipped


def fitting(memory: int, needed: Callable[[Architecture], float]) -> str:
    """Return the name of the largest released model that a GPU holds.

    Args:
        memory: bytes of the GPU.
        needed: returns the bytes that a model takes.

    Raises:
        Skipped: if none fits.
    """
    sizes = {name: needed(architecture) for name, architecture in RELEASED.items()}
    fit = {name: size for name, size in sizes.items() if size <= memory}
    if not fit:
        name, size = min(sizes.items(), key=lambda pair: pair[1])
        raise Skipped(f"{name} needs {size / 1e9:.0f} GB here; the GPU has {memory / 1e9:.0f} GB")
    return max(fit, key=lambda name: fit[name])


def memory_of_gpu() -> int:
    """Return the bytes of the first GPU."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)
