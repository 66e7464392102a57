"""The GPU memory that a run needs, part by part, and what to change if it does not fit."""

import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.plan import size
from grpo.model import model_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, NO_SHARD, PACKED, ZERO3, Architecture
from grpo.model.footprint import Actor
from grpo.model.model_files import CheckpointError
from grpo.model.released import CONTEXT, RELEASED
from grpo.rollout.multi_turn import settings
from grpo.stack import machine
from grpo.stack.problem import Problem

ASSUMED_GB = 80
_GIB = 2**30
_SHORTEST = 1024  # tokens that are worth training on
# Assumed: CUDA and NCCL take 1 GB, and 5% of a GPU is lost in fragments; vLLM's buffers and activations take 4 GB.
_CUDA, _FRAGMENTS, _VLLM = 1 * machine.GB, 0.05, 4 * machine.GB


@dataclass(frozen=True)
class Needs:
    """What the GPUs of a run hold.

    Attributes:
        gpu: bytes of a GPU, and `source` tells where the number is from.
        actor, engine: bytes of each part by its name. The engine's key/value cache is what is left to it.
        rows: sequences of the actor's micro-batch, and `length` the tokens of each.
        engine_limit: bytes that an engine may use.
        cache_token: bytes of a token in the key/value cache of a GPU.
    """

    gpu: int
    source: str
    actor: dict[str, int]
    rows: int
    length: int
    engine: dict[str, int]
    engine_limit: int
    cache_token: int

    @property
    def of_actor(self) -> int:
        """Return the bytes of all parts of the actor."""
        return sum(self.actor.values())

    @property
    def actor_fits(self) -> bool:
        """Return whether an actor's GPU can hold its parts."""
        return self.of_actor <= self.gpu

    @property
    def cache_tokens(self) -> int:
        """Return how many tokens the key/value cache of an engine holds; below 0 if not even the weights fit."""
        return (self.engine_limit - sum(self.engine.values())) // self.cache_token


def needs(config: Config, **changes: Any) -> Needs | None:
    """Return what the GPUs hold, with other values of some flags.

    Returns None if a model is unknown, or small enough for the CPUs that the run is for.
    """
    args = Namespace(**vars(config.args) | changes)
    actor, engine = _architecture(args.pretrain), _architecture(args.engine_model)
    if actor is None or engine is None:
        return None
    if not is_for_gpus(actor):
        return None
    gpu, source = _gpu(args)
    rows = args.micro_train_batch_size * _branches(args)
    length = args.max_len or args.prompt_max_len + args.generate_max_len
    parts = _actor(args, actor, config.actor_ranks).parts(rows, length)
    parts["CUDA, NCCL, and fragments"] = int(_CUDA + _FRAGMENTS * gpu)
    if args.colocate_all_models:
        parts["the engine"] = int(args.vllm_gpu_memory_utilization * gpu)
    return Needs(
        gpu=gpu,
        source=source,
        actor=parts,
        rows=rows,
        length=length,
        engine=_engine(args, engine),
        engine_limit=int(args.vllm_gpu_memory_utilization * gpu),
        cache_token=_cache_token(args, engine),
    )


def _architecture(name: str) -> Architecture | None:
    """Return the architecture of a model from its files, or as it is known of a released one."""
    try:
        return RELEASED.get(name) or Architecture.from_config(model_files.read_json(Path(name) / "config.json"))
    except CheckpointError:
        return None  # the preflight explains it


def _gpu(args: Namespace) -> tuple[int, str]:
    """Return the bytes of a GPU, and where the number is from."""
    if args.gpu_gb:
        return int(args.gpu_gb * _GIB), "GPU_GB"
    here = [] if os.environ.get("RAY_ADDRESS") else machine.gpus()
    if here:
        return min(gpu.memory for gpu in here), "the smallest GPU of this machine"
    return ASSUMED_GB * _GIB, f"assumed: {ASSUMED_GB} GiB, set GPU_GB for others"


def _branches(args: Namespace) -> int:
    """Return how many rows of a rollout the actor holds at once."""
    if not settings.has_environment(args):
        return 1
    given = settings.variables().get("MAX_BRANCHES", "0")
    return 1 + (int(given) if given.isdecimal() else 0)  # another check refuses it


def _actor(args: Namespace, architecture: Architecture, ranks: int) -> Actor:
    return Actor(
        architecture=architecture,
        lora_parameters=sum(a + b for a, b in _adapter(args, architecture)),
        ranks=ranks,
        packed=args.experts == PACKED,
        sharded=args.actor_shard != NO_SHARD,
        offload=args.offload,
        adam_offload=args.adam_offload,
        checkpointing=args.gradient_checkpointing,
        eager=args.attn_implementation == "eager",
    )


def _adapter(args: Namespace, architecture: Architecture, workers: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the elements of A and of B of all layers, per target, in a worker of an engine of so many."""
    for name in set(args.target_modules) & set(ATTENTION_PROJECTIONS):
        outer, inner = architecture.projection(name)
        a, b = (architecture.layers * args.lora_rank * width for width in (inner, outer))
        yield (a // workers, b) if name == "o_proj" else (a, b // workers)


def _engine(args: Namespace, architecture: Architecture) -> dict[str, int]:
    workers = args.vllm_tensor_parallel_size
    weights = sum(architecture.actor_bytes(architecture.mxfp4).values())
    return {
        "weights": weights // workers,
        "adapter, as a side path": 2 * sum(a + b for a, b in _adapter(args, architecture, workers)),
        "buffers and activations (assumed)": int(_VLLM),
    }


def _cache_token(args: Namespace, architecture: Architecture) -> int:
    of_layer = 2 * architecture.key_value_heads * architecture.head_dim * 2
    return max(1, architecture.layers * of_layer // args.vllm_tensor_parallel_size)


def longest(config: Config) -> int:
    """Return the tokens of the longest sequence that the actor can train on alone; 0 if none fits."""
    low, high = 0, CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        need = needs(config, micro_train_batch_size=1, max_len=middle)
        low, high = (middle, high) if need and need.actor_fits else (low, middle - 1)
    return low


def problems(config: Config) -> Iterator[Problem]:
    """Yield what cannot fit, with the first remedy that would help."""
    need = needs(config)
    if need is None or need.length > _positions(config.args.pretrain):
        return  # beyond the model's positions, another check refuses the length
    if not need.actor_fits:
        yield Problem(
            f"the actor needs {size(need.of_actor)} on each GPU, which has {size(need.gpu)} ({need.source})",
            _remedy(config),
        )
    if need.cache_tokens < need.length:
        weights = f"{size(need.engine['weights'])} of weights"
        other = "lower PROMPT_MAX_LEN + GENERATE_MAX_LEN" if need.cache_tokens > 0 else "use GPUs with more memory"
        yield Problem(
            f"an engine may use {size(need.engine_limit)} of each GPU ({need.source}), which has no room for {weights} "
            f"and a key/value cache of {need.length:,} tokens",
            f"raise ENGINE_TP, or {other}",
        )


def _positions(name: str) -> int:
    """Return the longest sequence of a model in tokens."""
    if name in RELEASED:
        return CONTEXT
    return model_files.read_json(Path(name) / "config.json").get("max_position_embeddings", CONTEXT)


def _remedy(config: Config) -> str:
    """Return the first change that makes the actor fit."""
    changes: list[tuple[dict[str, Any], str]] = [
        ({"attn_implementation": "sinks"}, "ATTN_IMPLEMENTATION=sinks"),
        ({"gradient_checkpointing": True}, "GRADIENT_CHECKPOINTING=1"),
        ({"experts": PACKED, "offload": False}, "EXPERTS=packed"),
        ({"micro_train_batch_size": 1}, "MICRO_TRAIN_BATCH_SIZE=1"),
        ({"adam_offload": True}, "ADAM_OFFLOAD=1"),
    ]
    more = "use more ACTOR_GPUS"
    if config.args.actor_shard == NO_SHARD:
        more += " with ACTOR_SHARD=zero3"
    if config.actor_ranks > 1:
        changes.append(({"actor_shard": ZERO3}, "ACTOR_SHARD=zero3"))
    for change, variable in changes:
        if _would_fit(config, change):
            return f"set {variable}"
    limit = longest(config)
    if limit >= _SHORTEST:
        return f"lower PROMPT_MAX_LEN + GENERATE_MAX_LEN to {limit:,}, or {more}"
    if _would_fit(config, {"offload": True, "actor_shard": ZERO3}):
        return f"set OFFLOAD=1 and ACTOR_SHARD=zero3, or {more}"
    return f"{more}, or GPUs with more memory"


def _would_fit(config: Config, change: dict[str, Any]) -> bool:
    need = needs(config, **change)
    return need is not None and need.actor_fits


def describe(config: Config) -> list[str]:
    """Describe what the GPUs hold in lines for people."""
    need = needs(config)
    if need is None:
        return []
    cache = need.cache_tokens
    left = max(0, cache * need.cache_token)
    at_once = f"{cache:,} tokens, {cache // need.length} of the longest sequences at once"
    return [
        f"GPU memory  {size(need.gpu)} each ({need.source}); calculated, not measured",
        f"  actor     {size(need.of_actor)} on each of its {config.actor_ranks}, at micro-batches of {need.rows} x "
        f"{need.length:,} tokens:",
        *(f"            {size(count):>9}  {name}" for name, count in need.actor.items()),
        f"            a sequence of up to {longest(config):,} tokens fits with MICRO_TRAIN_BATCH_SIZE=1",
        f"  engine    {size(need.engine_limit)} on each of {config.engine_gpus}:",
        *(f"            {size(count):>9}  {name}" for name, count in need.engine.items()),
        f"            {size(left):>9}  key/value cache: " + (at_once if cache > 0 else "no room"),
    ]
