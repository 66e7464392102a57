"""Chooses the size of micro-batches that no flag sets: as many samples as the plan says fit on a GPU."""

from grpo.launch import gpu_memory
from grpo.launch.config import Config
from grpo.launch.gpu_memory import Needs

_SHARE = 0.9  # of a GPU: the need is calculated, and nobody asked for this size
_SIZES = ("micro_train_batch_size", "micro_rollout_batch_size")


def choose(config: Config) -> Config:
    """Return the configuration with the sizes that it lacks. The objective does not depend on them."""
    missing = [name for name in _SIZES if name not in config.given]
    return config.changed(**dict.fromkeys(missing, largest(config))) if missing else config


def largest(config: Config) -> int:
    """Return the largest size that fits with room to spare and divides a rank's share of an optimizer batch, or 1.

    A pass for log-probs keeps less than the update does, so the size fits there too.
    """
    share, rest = divmod(config.args.train_batch_size, config.actor_ranks)
    for count in () if rest else range(share, 1, -1):
        need = gpu_memory.needs(config, micro_train_batch_size=count) if share % count == 0 else None
        if need and need.peak + _cache(config, need) <= _SHARE * need.gpu:
            return count
    return 1


def _cache(config: Config, need: Needs) -> int:
    """Return the bytes that a shared GPU keeps for the cache, so that its engine samples all its rollouts at once."""
    if not need.shared:
        return 0
    return config.samples_per_rollout // config.args.vllm_num_engines * need.cache.bytes(need.length)
