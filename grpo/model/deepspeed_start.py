"""What DeepSpeed does at its start, and a rank can do without: seconds of CPU time."""

import gc

import deepspeed


def shorten() -> None:
    """Shorten `deepspeed.init_distributed` and `deepspeed.initialize`, which follow in this process.

    - An operator for inference on CPUs is neither compiled, which takes minutes, nor loaded.
    - It collects garbage ten times. Freezing excludes everything imported so far from those collections.

    Tensors that only garbage holds shall not wait: a rank collects as often as Python does by default.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    gc.freeze()
    gc.set_threshold(700)
