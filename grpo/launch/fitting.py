"""Chooses what no flag sets, as the plan says that it fits: micro-batches, and an engine's share of a shared GPU."""

from grpo.launch import gpu_memory
from grpo.launch.config import Config
from grpo.launch.gpu_memory import Needs

MICRO_BATCHES = ("micro_train_batch_size", "micro_rollout_batch_size")
_SHARE = 0.9  # of a GPU: the need is calculated, and nobody asked for this size


def choose(config: Config) -> Config:
    """Return the configuration with what it lacks. The objective does not depend on it."""
    if missing := [name for name in MICRO_BATCHES if name not in config.given]:
        config = config.replace_flags(**dict.fromkeys(missing, largest_micro_batch(config)))
    return choose_engine_share(config)


def choose_engine_share(config: Config) -> Config:
    """Return the configuration with what the actor leaves to an engine, if they share GPUs and no flag sets it."""
    if not config.args.colocate_all_models or "vllm_gpu_memory_utilization" in config.given:
        return config
    need = gpu_memory.needs(config)
    return config.replace_flags(vllm_gpu_memory_utilization=need.share_left) if need else config


def largest_micro_batch(config: Config) -> int:
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
    return config.rollouts_per_step // config.args.vllm_num_engines * need.cache.bytes(need.length)
