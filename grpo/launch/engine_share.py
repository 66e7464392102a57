"""Chooses the engine's share of a GPU that it has in common with the actor: what the actor leaves."""

import math

from grpo.launch import gpu_memory
from grpo.launch.config import Config
from grpo.launch.gpu_memory import SHARE_STEP, Needs

_FLAG = "vllm_gpu_memory_utilization"


def choose(config: Config) -> Config:
    """Return the configuration with an engine's share, if engine and actor share GPUs and no flag sets it."""
    if not config.args.colocate_all_models or _FLAG in config.given:
        return config
    need = gpu_memory.needs(config)
    return config.changed(**{_FLAG: left(need)}) if need else config


def left(need: Needs) -> float:
    """Return the share of a GPU that the actor leaves, in steps of SHARE_STEP and at least one of them."""
    return round(max(1, math.floor(need.left_to_engine / need.gpu / SHARE_STEP)) * SHARE_STEP, 3)
