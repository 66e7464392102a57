"""What DeepSpeed does at its start, and a rank can do without: a CUDA toolkit, about six seconds of CPU time."""

import functools
import gc

import cpuinfo
import deepspeed
from deepspeed.ops.adam import cpu_adam as deepspeed_cpu_adam

from grpo.model import cpu_adam


def shorten() -> None:
    """Shorten `deepspeed.init_distributed` and `deepspeed.initialize`, which follow in this process.

    - An operator for inference on CPUs is neither compiled, which takes minutes, nor loaded.
    - DeepSpeed asks for the processor's features three times, each time in a new process.
    - It collects garbage ten times. Freezing excludes everything imported so far from those collections.
    - Its CPU Adam is the one that needs no CUDA toolkit.
    """
    cpu_adam.install()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed's CPU Adam has imported the function by name.
    cpuinfo.get_cpu_info = deepspeed_cpu_adam.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    gc.freeze()
