"""The GPU memory that a run needs, part by part.

With COLOCATE=1, engine and actor share each GPU and take turns. Both keep what they hold. With ACTOR_SHARD=engine the
frozen base counts once, as the engine's weights. With vLLM's sleep, the engine drops its cache for the update. Its
weights count as staying: they do in vLLM 0.15.0, whose `Worker.load_model` never enters the pool from which sleep would
move them. Later versions move them to host memory.
"""

import math
import os
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.environments import settings
from grpo.launch.config import Config
from grpo.launch.host_memory import is_for_gpus
from grpo.launch.plan import size
from grpo.model import model_files
from grpo.model.architecture import OF_ENGINE, PACKED, ZERO3, Architecture
from grpo.model.footprint import IN_FLIGHT, Actor, Cache, count_expert_adapter, count_padding
from grpo.model.model_files import CheckpointError
from grpo.model.released import CONTEXT, RELEASED
from grpo.stack import machine

ASSUMED_GB = 80
SHARE_STEP = 0.001  # the precision of an engine's share of a GPU
_GIB = 2**30
# Assumed: CUDA and NCCL take 1 GB, and 5% of a GPU is lost in fragments; vLLM's buffers and activations take 4 GB. It
# captures CUDA graphs after it has sized its cache: 1 GB more.
_CUDA, _FRAGMENTS, _VLLM, _GRAPHS = 1 * machine.GB, 0.05, 4 * machine.GB, 1 * machine.GB


@dataclass(frozen=True)
class Needs:
    """What the GPUs of a run hold.

    Attributes:
        gpu: bytes of a GPU, and `source` tells where the number is from.
        actor, engine: bytes of each part by its name. The engine's key/value cache is what is left to it.
        held: bytes of the actor while it computes nothing.
        rows: sequences of the actor's micro-batch, and `length` the tokens of each.
        engine_limit: bytes that an engine may use.
        cache: the key/value cache of a GPU of an engine.
        shared: whether engine and actor have the same GPUs.
        sleeps: whether a shared GPU's engine gives up its cache during the update.
    """

    gpu: int
    source: str
    actor: dict[str, int]
    held: int
    rows: int
    length: int
    engine: dict[str, int]
    engine_limit: int
    cache: Cache
    shared: bool
    sleeps: bool

    @property
    def actor_bytes(self) -> int:
        """Return the bytes of all parts of the actor."""
        return sum(self.actor.values())

    @property
    def smallest_engine(self) -> int:
        """Return the bytes of an engine whose cache holds one of the longest sequences."""
        return sum(self.engine.values()) + self.cache.bytes(self.length, IN_FLIGHT)

    @property
    def peak(self) -> int:
        """Return the most bytes of a GPU of the actor, beside the smallest engine if they share it."""
        if not self.shared:
            return self.actor_bytes
        sampling = (self.held if self.sleeps else self.actor_bytes) + self.smallest_engine + int(SHARE_STEP * self.gpu)
        return max(sampling, self.actor_bytes + sum(self.engine.values()))

    @property
    def left_to_engine(self) -> int:
        """Return the bytes of a shared GPU that the actor leaves."""
        return self.gpu - (self.held if self.sleeps else self.actor_bytes)

    @property
    def share_left(self) -> float:
        """Return the share of a shared GPU that the actor leaves, in steps of SHARE_STEP and at least one of them."""
        return round(max(1, math.floor(self.left_to_engine / self.gpu / SHARE_STEP)) * SHARE_STEP, 3)

    @property
    def cache_room(self) -> int:
        """Return the bytes of the key/value cache on an engine's GPU; below 0 if not even the weights fit."""
        return self.engine_limit - sum(self.engine.values())

    @property
    def engine_fits(self) -> bool:
        """Return whether vLLM starts: its cache has room for one of the longest sequences."""
        return self.smallest_engine <= self.engine_limit

    @property
    def at_once(self) -> int:
        """Return how many of the longest sequences the cache holds."""
        return max(0, self.cache_room // self.cache.bytes(self.length))


def needs(config: Config, **changes: Any) -> Needs | None:
    """Return what the GPUs hold, with other values of some flags.

    Returns None if a model is unknown, or small enough for the CPUs that the run is for.
    """
    args = Namespace(**vars(config.args) | changes)
    actor, engine = _architecture(args.pretrain), _architecture(args.engine_model)
    if actor is None or engine is None or not is_for_gpus(actor):
        return None
    gpu, source = _gpu(args)
    rows = args.micro_train_batch_size * _branches(args)
    length = args.max_len or args.prompt_max_len + args.generate_max_len
    rank, fragments = _actor(args, actor, config.actor_ranks), int(_CUDA + _FRAGMENTS * gpu)
    return Needs(
        gpu=gpu,
        source=source,
        actor=rank.parts(rows, length) | {"CUDA, NCCL, and fragments": fragments},
        held=sum(rank.held_parts().values()) + fragments,
        rows=rows,
        length=length,
        engine=_engine(args, engine),
        engine_limit=int(args.vllm_gpu_memory_utilization * gpu),
        cache=Cache(engine, args.vllm_tensor_parallel_size),
        shared=args.colocate_all_models,
        sleeps=args.vllm_enable_sleep,
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
        lora_parameters=architecture.count_lora_parameters(args),
        expert_rank=architecture.find_expert_rank(args),
        ranks=ranks,
        packed=args.experts == PACKED,
        sharded=args.actor_shard == ZERO3,
        maps=args.actor_shard == OF_ENGINE,
        offload=args.offload,
        adam_offload=args.adam_offload,
        checkpointing=args.gradient_checkpointing,
        eager=args.attn_implementation == "eager",
        reference=bool(args.adapter) and args.init_kl_coef > 0,
    )


def _side_path(args: Namespace, architecture: Architecture) -> int:
    """Return the bytes of the adapter in a worker of an engine, whose buffers are for all projections of attention.

    Those of experts are for all of them too, if they have adapters.
    """
    workers, (hidden, queries) = args.vllm_tensor_parallel_size, architecture.projection("o_proj")
    of_qkv = sum(architecture.projection(name)[0] for name in ("q_proj", "k_proj", "v_proj")) // workers
    widths = 3 * (hidden + of_qkv) + queries // workers + hidden  # B of q, k and v is one matrix with three blocks
    of_experts = count_expert_adapter(architecture, architecture.find_expert_rank(args), workers)
    return architecture.layers * (2 * args.lora_rank * widths + of_experts)


def _engine(args: Namespace, architecture: Architecture) -> dict[str, int]:
    weights = sum(architecture.actor_bytes(architecture.mxfp4).values())
    parts = {
        "weights": weights // args.vllm_tensor_parallel_size,
        "padding of the experts, by Marlin": _padding(args, architecture),
        "adapter, as a side path": _side_path(args, architecture),
        "buffers and activations (assumed)": int(_VLLM),
        "CUDA graphs (assumed)": 0 if args.enforce_eager else int(_GRAPHS),
    }
    return {name: count for name, count in parts.items() if count}


def _padding(args: Namespace, architecture: Architecture) -> int:
    """Return the bytes that vLLM adds to the experts where it takes Marlin's kernels, as far as the GPUs are known."""
    takes_marlin = any(not 9 <= float(gpu.capability) < 11 for gpu in machine.known_gpus())
    return count_padding(architecture, args.vllm_tensor_parallel_size) if takes_marlin and architecture.mxfp4 else 0


def longest(config: Config, **changes: Any) -> int:
    """Return the tokens of the longest sequence that the actor can train on alone; 0 if none fits.

    On a shared GPU, the engine then holds one such sequence.
    """
    low, high = 0, CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        need = needs(config, micro_train_batch_size=1, max_len=middle, **changes)
        low, high = (middle, high) if need and need.peak <= need.gpu else (low, middle - 1)
    return low


def describe(config: Config) -> list[str]:
    """Describe what the GPUs hold in lines for people."""
    need = needs(config)
    if need is None:
        return []
    limit = longest(config)
    then = "the engine drops its cache for the update" if need.sleeps else "both keep what they hold"
    if config.args.actor_shard == OF_ENGINE:
        then += f"; one copy of the model needs compute capability {machine.SHARES_MODEL} (H100, H200)"
    return [
        f"GPU memory  {size(need.gpu)} each ({need.source}); calculated, not measured",
        f"  actor     {size(need.actor_bytes)} on each of its {config.actor_ranks}, at micro-batches of {need.rows} x "
        f"{need.length:,} tokens:",
        *(f"            {size(count):>9}  {name}" for name, count in need.actor.items()),
        f"            a sequence of up to {limit:,} tokens fits with MICRO_TRAIN_BATCH_SIZE=1"
        if limit
        else "            no sequence fits, however short",
        f"  engine    {size(need.engine_limit)} on each of {config.engine_gpus}:",
        *(f"            {size(count):>9}  {name}" for name, count in need.engine.items()),
        f"            {size(max(0, need.cache_room)):>9}  key/value cache: {describe_cache(need)}",
        *([f"  shared    engine and actor take turns, and {then}"] if need.shared else []),
    ]


def describe_cache(need: Needs) -> str:
    """Say what an engine's cache holds."""
    limit = min(CONTEXT, need.cache.longest(need.cache_room))
    return f"{need.at_once} of the longest sequences at once, or one of {limit:,} tokens" if limit else "no room"
