"""The other way to split the same GPUs: each has an engine and a rank with one copy of the model, or one of the two."""

from collections.abc import Iterator

from grpo.launch import equal_nodes, fitting, gpu_limits, gpu_memory
from grpo.launch.checks.batches import check_batches
from grpo.launch.config import Config
from grpo.launch.plan import size
from grpo.model.architecture import NO_SHARD, OF_ENGINE, PACKED, ZERO3
from grpo.settings.choose import ENGINE_SHARE
from grpo.stack.problem import Problem


def find_other(config: Config) -> Config | None:
    """Return the configuration with the other split, or None for one GPU and for several nodes."""
    if config.gpus < 2 or equal_nodes.is_stated(config):
        return None
    if config.args.actor_shard == OF_ENGINE:
        return _separate(config)
    return None if config.args.colocate_all_models else _pair(config)


def find_problems(config: Config) -> Iterator[Problem]:
    """Yield what a split cannot do."""
    yield from check_batches(config)
    yield from gpu_limits.problems(config)


def describe_settings(config: Config) -> str:
    """Return the settings of a split."""
    args = config.args
    if args.actor_shard == OF_ENGINE:
        return f"ACTOR_SHARD={OF_ENGINE} with {args.vllm_num_engines} engines and ranks"
    return (
        f"ACTOR_SHARD={args.actor_shard} COLOCATE=0 NUM_ENGINES={args.vllm_num_engines} "
        f"ENGINE_TP={args.vllm_tensor_parallel_size} ACTOR_GPUS={config.actor_ranks}"
    )


def describe_memory(config: Config) -> str:
    """Say what the GPUs of a split hold, and which sequences fit."""
    need = gpu_memory.needs(config)
    assert need is not None
    apart = "" if need.shared else "GPUs of their own: "
    return (
        f"{apart}actor {size(need.actor_bytes)}, engine {size(sum(need.engine.values()))} without cache, "
        f"sequences of up to {gpu_memory.longest(config):,} tokens"
    )


def _pair(config: Config) -> Config:
    """Give each GPU an engine and a rank."""
    changed = config.assume_flags(
        colocate_all_models=True,
        pipeline=False,
        experts=PACKED,
        offload=False,
        actor_shard=OF_ENGINE,
        vllm_num_engines=config.gpus,
        vllm_tensor_parallel_size=1,
        actor_num_nodes=1,
        actor_num_gpus_per_node=config.gpus,
    )
    _fit_batches(changed)
    return fitting.leave_to_engine(changed)


def _separate(config: Config) -> Config:
    """Give the actor half of the GPUs, and engines of two GPUs the others, as the boxes of --gpus do."""
    ranks = config.gpus // 2
    left = config.gpus - ranks
    width = 2 - left % 2
    changed = config.assume_flags(
        colocate_all_models=False,
        actor_shard=ZERO3 if ranks > 1 else NO_SHARD,
        vllm_num_engines=left // width,
        vllm_tensor_parallel_size=width,
        vllm_gpu_memory_utilization=ENGINE_SHARE,
        actor_num_nodes=1,
        actor_num_gpus_per_node=ranks,
    )
    _fit_batches(changed)
    return changed


def _fit_batches(config: Config) -> None:
    for name in fitting.MICRO_BATCHES:
        setattr(config.args, name, fitting.largest_micro_batch(config))
