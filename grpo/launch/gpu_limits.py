"""What does not fit on the GPUs, with the first setting that helps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.launch.config import Config
from grpo.launch.gpu_memory import Needs, longest, needs
from grpo.launch.plan import size
from grpo.model import model_files
from grpo.model.architecture import NO_SHARD, OF_ENGINE, PACKED, ZERO3
from grpo.model.released import CONTEXT, RELEASED
from grpo.stack import machine
from grpo.stack.problem import Problem

_SHORTEST = 1024  # tokens that are worth training on
_LARGEST_SHARE = 0.95  # of a GPU for an engine alone; CUDA and fragments take the rest


def problems(config: Config) -> Iterator[Problem]:
    """Yield what cannot fit, with the first remedy that would help."""
    need = needs(config)
    if need is None or need.length > _positions(config.args.pretrain):
        return  # beyond the model's positions, another check refuses the length
    gpu = machine.find_gpu_that_cannot_share()
    if gpu and config.args.actor_shard == OF_ENGINE:
        yield Problem(
            f"ACTOR_SHARD=engine needs GPUs of compute capability {machine.SHARES_MODEL} (H100, H200); {gpu.name} has "
            f"{gpu.capability}, where vLLM arranges the experts in another way, or has no kernels for this one",
            _remedy_of_copies(config),
        )
        return
    if need.peak > need.gpu:
        who = "engine and actor together need" if need.shared else "the actor needs"
        yield Problem(
            f"{who} {size(need.peak)} on each GPU, which has {size(need.gpu)} ({need.source})",
            _remedy(config, need.shared),
        )
    elif need.shared and not (need.engine_limit <= need.left_to_engine and need.engine_fits):
        yield Problem(
            f"GPU_MEMORY_UTILIZATION is {config.args.vllm_gpu_memory_utilization:g}, {size(need.engine_limit)} of each "
            f"GPU, but an engine needs {size(need.smallest_engine)}, and the actor leaves {size(need.left_to_engine)}",
            f"set GPU_MEMORY_UTILIZATION={need.share_left:g}, or unset it",
        )
    if not need.shared and not need.engine_fits:
        yield Problem(
            f"an engine may use {size(need.engine_limit)} of each GPU ({need.source}), which has no room for "
            f"{size(need.engine['weights'])} of weights and a key/value cache of {need.length:,} tokens",
            _remedy_of_engine(config, need),
        )


def _positions(name: str) -> int:
    """Return the longest sequence of a model in tokens."""
    if name in RELEASED:
        return CONTEXT
    return model_files.read_json(Path(name) / "config.json").get("max_position_embeddings", CONTEXT)


def _remedy_of_engine(config: Config, need: Needs) -> str:
    more = needs(config, vllm_gpu_memory_utilization=_LARGEST_SHARE)
    if more and more.engine_fits:
        return f"set GPU_MEMORY_UTILIZATION={_LARGEST_SHARE:g}, or raise ENGINE_TP"
    limit = need.cache.longest(need.cache_room)
    shorter = f"lower PROMPT_MAX_LEN + GENERATE_MAX_LEN to {limit:,}"
    return f"raise ENGINE_TP, or {shorter if limit >= _SHORTEST else 'use GPUs with more memory'}"


def _remedy(config: Config, is_shared: bool) -> str:
    """Return the first change that makes the actor fit, on a shared GPU together with an engine."""
    changes: list[tuple[dict[str, Any], str]] = [
        ({"attn_implementation": "sinks"}, "set ATTN_IMPLEMENTATION=sinks"),
        ({"gradient_checkpointing": True}, "set GRADIENT_CHECKPOINTING=1"),
        ({"experts": PACKED, "offload": False}, "set EXPERTS=packed"),
        ({"micro_train_batch_size": 1}, "set MICRO_TRAIN_BATCH_SIZE=1"),
        ({"adam_offload": True}, "set ADAM_OFFLOAD=1"),
    ]
    if config.actor_ranks > 1:
        changes.append(({"actor_shard": ZERO3}, "set ACTOR_SHARD=zero3"))
    if is_shared:
        if config.args.vllm_tensor_parallel_size == 1 and not machine.find_gpu_that_cannot_share():
            changes.append(({"actor_shard": OF_ENGINE, "experts": PACKED}, "set ACTOR_SHARD=engine"))
        changes.append(({"vllm_enable_sleep": True}, "add -- --vllm_enable_sleep"))
    for change, remedy in changes:
        if _would_fit(config, change):
            return remedy
    more = "give engine and actor GPUs of their own (--gpus 2)" if is_shared else "use more ACTOR_GPUS"
    if not is_shared and config.args.actor_shard == NO_SHARD:
        more += " with ACTOR_SHARD=zero3"
    limit = longest(config)
    if limit >= _SHORTEST:
        return f"lower PROMPT_MAX_LEN + GENERATE_MAX_LEN to {limit:,}, or {more}"
    if _would_fit(config, {"offload": True, "actor_shard": ZERO3}):
        return f"set OFFLOAD=1 and ACTOR_SHARD=zero3, or {more}"
    return f"{more}, or GPUs with more memory"


def _remedy_of_copies(config: Config) -> str:
    """Return what fits if engine and actor hold the model twice. Micro-batches that are not given adapt."""
    changes: list[tuple[dict[str, Any], str]] = [({"actor_shard": NO_SHARD}, f"set ACTOR_SHARD={NO_SHARD}")]
    if config.actor_ranks > 1:
        changes.append(({"actor_shard": ZERO3}, f"set ACTOR_SHARD={ZERO3}"))
    changes.append(({"actor_shard": ZERO3, "offload": True}, f"set OFFLOAD=1 and ACTOR_SHARD={ZERO3}"))
    for change, remedy in changes:
        if _would_fit(config, change | {"micro_train_batch_size": 1}):
            return remedy
    return "give engine and actor GPUs of their own, or use a smaller MODEL"


def _would_fit(config: Config, change: dict[str, Any]) -> bool:
    need = needs(config, **change)
    return need is not None and need.peak <= need.gpu
