"""The GPU memory that a run needs, part by part, and the sizes that follow from it.

With --colocate_all_models, engine and actor share each GPU and take turns. Both keep what they hold. With --actor_shard
engine the frozen base counts once, as the engine's weights. With vLLM's sleep, the engine drops its cache for the
update. Its weights count as staying: they do in vLLM 0.15.0, whose `Worker.load_model` never enters the pool from which
sleep would move them. Later versions move them to host memory.
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
from grpo.launch.plan import list_sizes, size
from grpo.model import model_files
from grpo.model.architecture import OF_ENGINE, Architecture
from grpo.model.footprint import IN_FLIGHT, Actor, Cache, count_padding, count_side_path
from grpo.model.model_files import CheckpointError
from grpo.model.released import CONTEXT, RELEASED
from grpo.stack import machine
from grpo.stack.machine import Gpu

ASSUMED_GB = 80
MICRO_BATCHES = ("micro_train_batch_size", "micro_rollout_batch_size")
SHARE_STEP = 0.001  # the precision of an engine's share of a GPU
_GIB = 2**30
# Assumed: CUDA and NCCL take 1 GB, and 5% of a GPU is lost in fragments; vLLM's buffers and activations take 4 GB. It
# captures CUDA graphs after it has sized its cache: 1 GB more.
_CUDA, _FRAGMENTS, _VLLM, _GRAPHS = 1 * machine.GB, 0.05, 4 * machine.GB, 1 * machine.GB
_MOST = 0.9  # of a GPU, for micro-batches: the need is calculated, and nobody asked for this size


@dataclass(frozen=True)
class Needs:
    """What the GPUs of a run hold, in bytes. Parts are by name; the engine's key/value cache is what is left to it."""

    gpu: int
    source: str  # where the size of a GPU is from
    actor: dict[str, int]
    held: int  # by the actor while it computes nothing
    rows: int  # sequences of the actor's micro-batch
    length: int  # tokens of each
    engine: dict[str, int]
    engine_limit: int  # that an engine may use
    cache: Cache  # of a GPU of an engine
    shared: bool  # engine and actor have the same GPUs
    sleeps: bool  # a shared GPU's engine gives up its cache during the update

    @property
    def actor_bytes(self) -> int:
        """Return the bytes of all parts of the actor."""
        return sum(self.actor.values())

    @property
    def smallest_engine(self) -> int:
        """Return the bytes of an engine whose cache holds one of the longest sequences. vLLM starts with no less."""
        return sum(self.engine.values()) + self.cache.bytes(self.length, IN_FLIGHT)

    @property
    def left_to_engine(self) -> int:
        """Return the bytes of a shared GPU that the actor leaves."""
        return self.gpu - (self.held if self.sleeps else self.actor_bytes)

    @property
    def share_left(self) -> float:
        """Return the share of a shared GPU that the actor leaves, in steps of SHARE_STEP and at least one of them."""
        return round(max(1, math.floor(self.left_to_engine / self.gpu / SHARE_STEP)) * SHARE_STEP, 3)

    @property
    def peak(self) -> int:
        """Return the most bytes of a GPU of the actor, beside the smallest engine if they share it."""
        if not self.shared:
            return self.actor_bytes
        sampling = self.gpu - self.left_to_engine + self.smallest_engine + int(SHARE_STEP * self.gpu)
        return max(sampling, self.actor_bytes + sum(self.engine.values()))

    @property
    def cache_room(self) -> int:
        """Return the bytes of the key/value cache on an engine's GPU; below 0 if not even the weights fit."""
        return self.engine_limit - sum(self.engine.values())

    @property
    def at_once(self) -> int:
        """Return how many of the longest sequences the cache holds."""
        return max(0, self.cache_room // self.cache.bytes(self.length))


def needs(config: Config, **changes: Any) -> Needs | None:
    """Return what the GPUs hold with other values of some flags; None for an unknown model, or one that CPUs train."""
    args = Namespace(**vars(config.args) | changes)
    shape, of_engine = find_architecture(args.pretrain), find_architecture(args.engine_model)
    if shape is None or of_engine is None or not is_for_gpus(shape):
        return None
    gpu, source = _find_gpu(args)
    rows = args.micro_train_batch_size * _count_branches(args)
    length = args.max_len or args.prompt_max_len + args.generate_max_len
    rank, fragments = Actor(shape, args, config.actor_ranks), int(_CUDA + _FRAGMENTS * gpu)
    return Needs(
        gpu=gpu,
        source=source,
        actor=rank.parts(rows, length) | {"CUDA, NCCL, and fragments": fragments},
        held=sum(rank.held_parts().values()) + fragments,
        rows=rows,
        length=length,
        engine=_list_engine_parts(args, of_engine),
        engine_limit=int(args.vllm_gpu_memory_utilization * gpu),
        cache=Cache(of_engine, args.vllm_tensor_parallel_size),
        shared=args.colocate_all_models,
        sleeps=args.vllm_enable_sleep,
    )


def find_gpu_of_marlin(shape: Architecture | None) -> Gpu | None:
    """Return a GPU here for which vLLM takes Marlin's kernels in place of Triton's; None if none is known."""
    gpus = machine.known_gpus() if shape and shape.mxfp4 else []
    return next((gpu for gpu in gpus if not 9 <= float(gpu.capability) < 11), None)


def find_architecture(name: str) -> Architecture | None:
    """Return the architecture of a model from its files, or as it is known of a released one."""
    try:
        return RELEASED.get(name) or Architecture.from_config(model_files.read_json(Path(name) / "config.json"))
    except CheckpointError:
        return None  # the preflight explains it


def _find_gpu(args: Namespace) -> tuple[int, str]:
    """Return the bytes of a GPU, and where the number is from."""
    if args.gpu_gb:
        return int(args.gpu_gb * _GIB), "--gpu_gb"
    here = [] if os.environ.get("RAY_ADDRESS") else machine.gpus()
    if here:
        return min(gpu.memory for gpu in here), "the smallest GPU of this machine"
    return ASSUMED_GB * _GIB, f"assumed: {ASSUMED_GB} GiB, set --gpu_gb for others"


def _count_branches(args: Namespace) -> int:
    """Return how many rows of a rollout the actor holds at once."""
    given = settings.variables().get("MAX_BRANCHES", "0") if settings.has_environment(args) else "0"
    return 1 + (int(given) if given.isdecimal() else 0)  # another check refuses it


def _list_engine_parts(args: Namespace, shape: Architecture) -> dict[str, int]:
    width = args.vllm_tensor_parallel_size
    padding = count_padding(shape, width) if find_gpu_of_marlin(shape) else 0
    parts = {
        "weights": sum(shape.actor_bytes(shape.mxfp4).values()) // width,
        "padding of the experts, by Marlin": padding,
        "adapter, as a side path": count_side_path(shape, args, width),
        "buffers and activations (assumed)": int(_VLLM),
        "CUDA graphs (assumed)": 0 if args.enforce_eager else int(_GRAPHS),
    }
    return {name: count for name, count in parts.items() if count}


def choose(config: Config) -> Config:
    """Return the configuration with the micro-batches and the engine's share that no flag sets.

    The objective does not depend on them.
    """
    if missing := [name for name in MICRO_BATCHES if name not in config.given]:
        config = Config.from_given(config.given | dict.fromkeys(missing, _find_largest_micro_batch(config)))
    need = needs(config)
    if need is None or not need.shared or "vllm_gpu_memory_utilization" in config.given:
        return config
    return Config.from_given(config.given | {"vllm_gpu_memory_utilization": need.share_left})


def _find_largest_micro_batch(config: Config) -> int:
    """Return the largest size that fits with room to spare and divides a rank's share of an optimizer batch, or 1.

    A pass for log-probs keeps less than the update does, so the size fits there too. A shared GPU keeps room for the
    cache with which its engine samples all its rollouts at once.
    """
    share, rest = divmod(config.args.train_batch_size, config.actor_ranks)
    rollouts = config.rollouts_per_step // config.args.vllm_num_engines
    for count in () if rest else range(share, 1, -1):
        need = needs(config, micro_train_batch_size=count) if share % count == 0 else None
        if need and need.peak + need.shared * rollouts * need.cache.bytes(need.length) <= _MOST * need.gpu:
            return count
    return 1


def find_longest(config: Config) -> int:
    """Return the tokens of the longest sequence that the actor can train on alone; 0 if none fits.

    On a shared GPU, the engine then holds one such sequence.
    """
    low, high = 0, CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        need = needs(config, micro_train_batch_size=1, max_len=middle)
        low, high = (middle, high) if need and need.peak <= need.gpu else (low, middle - 1)
    return low


def describe(config: Config) -> list[str]:
    """Describe what the GPUs hold in lines for people."""
    need = needs(config)
    if need is None:
        return []
    limit, cached = find_longest(config), min(CONTEXT, need.cache.longest(need.cache_room))
    alone = f"a sequence of up to {limit:,} tokens fits with --micro_train_batch_size 1"
    at_once = f"{need.at_once} of the longest sequences at once, or one of {cached:,} tokens"
    then = "the engine drops its cache for the update" if need.sleeps else "both keep what they hold"
    if config.args.actor_shard == OF_ENGINE:
        then += f"; one copy of the model needs compute capability {machine.name_models(machine.SHARES_MODEL)}"
    return [
        f"GPU memory  {size(need.gpu)} each ({need.source}); calculated, not measured",
        f"  actor     {size(need.actor_bytes)} on each of its {config.actor_ranks}, at micro-batches of {need.rows} x "
        f"{need.length:,} tokens:",
        *list_sizes(need.actor),
        f"            {alone if limit else 'no sequence fits, however short'}",
        f"  engine    {size(need.engine_limit)} on each of {config.engine_gpus}:",
        *list_sizes(need.engine | {f"key/value cache: {at_once if cached else 'no room'}": max(0, need.cache_room)}),
        *([f"  shared    engine and actor take turns, and {then}"] if need.shared else []),
    ]
