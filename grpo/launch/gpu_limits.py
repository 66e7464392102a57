"""What does not fit on the GPUs, with the first setting that helps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.launch.config import Config
from grpo.launch.gpu_memory import Needs, find_longest, needs
from grpo.launch.plan import size
from grpo.model import model_files
from grpo.model.architecture import NO_SHARD, OF_ENGINE, PACKED, ZERO3
from grpo.model.released import CONTEXT, RELEASED
from grpo.stack import machine
from grpo.stack.problem import Problem

_SHORTEST = 1024  # tokens that are worth training on
_LARGEST_SHARE = 0.95  # of a GPU for an engine alone; CUDA and fragments take the rest
_ON_HOST = ({"offload": True, "actor_shard": ZERO3}, "set --offload and --actor_shard zero3")
Changes = list[tuple[dict[str, Any], str]]


def problems(config: Config) -> Iterator[Problem]:
    """Yield what cannot fit, with the first remedy that would help."""
    args, need = config.args, needs(config)
    if need is None or need.length > _find_positions(args.pretrain):
        return  # beyond the model's positions, another check refuses the length
    gpu = machine.find_gpu_that_cannot_share()
    if gpu and args.actor_shard == OF_ENGINE:
        yield Problem(
            f"--actor_shard engine needs GPUs of compute capability {machine.SHARES_MODEL} (H100, H200); {gpu.name} "
            f"has {gpu.capability}, where vLLM arranges the experts in another way, or has no kernels for this one",
            _find_remedy_of_copies(config),
        )
    elif need.peak > need.gpu:
        who = "engine and actor together need" if need.shared else "the actor needs"
        what = f"{who} {size(need.peak)} on each GPU, which has {size(need.gpu)} ({need.source})"
        yield Problem(what, _find_remedy(config, need))
    elif need.shared and not need.smallest_engine <= need.engine_limit <= need.left_to_engine:
        yield Problem(
            f"--vllm_gpu_memory_utilization is {args.vllm_gpu_memory_utilization:g}, {size(need.engine_limit)} of each "
            f"GPU, but an engine needs {size(need.smallest_engine)}, and the actor leaves {size(need.left_to_engine)}",
            f"set --vllm_gpu_memory_utilization {need.share_left:g}, or unset it",
        )
    if not need.shared and need.smallest_engine > need.engine_limit:
        yield Problem(
            f"an engine may use {size(need.engine_limit)} of each GPU ({need.source}), which has no room for "
            f"{size(need.engine['weights'])} of weights and a key/value cache of {need.length:,} tokens",
            _find_remedy_of_engine(need),
        )


def _find_positions(name: str) -> int:
    """Return the longest sequence of a model in tokens."""
    config = {} if name in RELEASED else model_files.read_json(Path(name) / "config.json")
    return config.get("max_position_embeddings", CONTEXT)


def _find_remedy_of_engine(need: Needs) -> str:
    if need.smallest_engine <= int(_LARGEST_SHARE * need.gpu):
        return f"set --vllm_gpu_memory_utilization {_LARGEST_SHARE:g}, or raise --vllm_tensor_parallel_size"
    limit = need.cache.longest(need.cache_room)
    shorter = f"lower --prompt_max_len + --generate_max_len to {limit:,}"
    return f"raise --vllm_tensor_parallel_size, or {shorter if limit >= _SHORTEST else 'use GPUs with more memory'}"


def _find_remedy(config: Config, need: Needs) -> str:
    """Return the first change that makes the actor fit, on a shared GPU together with an engine."""
    can_share = config.args.vllm_tensor_parallel_size == 1 and not machine.find_gpu_that_cannot_share()
    changes: Changes = [
        ({"attn_implementation": "sinks"}, "set --attn_implementation sinks"),
        ({"gradient_checkpointing": True}, "set --gradient_checkpointing"),
        ({"experts": PACKED, "offload": False}, "set --experts packed"),
        ({"micro_train_batch_size": 1}, "set --micro_train_batch_size 1"),
        ({"adam_offload": True}, "set --adam_offload"),
        *([({"actor_shard": ZERO3}, "set --actor_shard zero3")] if config.actor_ranks > 1 else []),
    ]
    more = "use more --actor_num_gpus_per_node"
    if need.shared:
        of_engine = ({"actor_shard": OF_ENGINE, "experts": PACKED}, "set --actor_shard engine")
        changes += [of_engine] if can_share else []
        changes.append(({"vllm_enable_sleep": True}, "set --vllm_enable_sleep"))
        more = "give engine and actor GPUs of their own (--gpus 2)"
    elif config.args.actor_shard == NO_SHARD:
        more += " with --actor_shard zero3"
    if remedy := _find_first(config, changes):
        return remedy
    if (limit := find_longest(config)) >= _SHORTEST:
        then = f"lower --prompt_max_len + --generate_max_len to {limit:,}"
    else:
        then = _find_first(config, [_ON_HOST])
    return f"{then}, or {more}" if then else f"{more}, or GPUs with more memory"


def _find_remedy_of_copies(config: Config) -> str:
    """Return what fits if engine and actor hold the model twice. Micro-batches that are not given adapt."""
    shards = (NO_SHARD, ZERO3) if config.actor_ranks > 1 else (NO_SHARD,)
    changes: Changes = [*(({"actor_shard": shard}, f"set --actor_shard {shard}") for shard in shards), _ON_HOST]
    one = [(change | {"micro_train_batch_size": 1}, text) for change, text in changes]
    return _find_first(config, one) or "give engine and actor GPUs of their own, or use a smaller MODEL"


def _find_first(config: Config, changes: Changes) -> str:
    """Return the text of the first change with which a GPU suffices; "" if there is none."""
    for change, text in changes:
        need = needs(config, **change)
        if need and need.peak <= need.gpu:
            return text
    return ""
