"""Leaves out what DeepSpeed does and a rank does not need: seconds of CPU time."""

import gc

import deepspeed
from deepspeed.utils import nvtx


def shorten() -> None:
    """Shorten `deepspeed.init_distributed` and `deepspeed.initialize`, which follow in this process, and its steps.

    - An operator for inference on CPUs is neither compiled, which takes minutes, nor loaded.
    - It marks no ranges for a profiler: 2,000 calls for each micro-batch of the tiny model.
    - It collects garbage ten times. Freezing excludes everything imported so far from those collections.

    A rank collects as often as Python does by default, so that tensors in garbage are freed soon.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    nvtx.enable_nvtx = False
    gc.freeze()
    gc.set_threshold(700)
