"""The host memory that a run needs, part by part, before it starts."""

import math
import os
from collections.abc import Iterable

from grpo.launch.config import Config
from grpo.model.architecture import OF_ENGINE, PACKED, ZERO3, Architecture
from grpo.model.model_files import Model
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.machine import GB

# The CPU stack is for the tiny models of tests. The gpt-oss models on the hub have at least 42 GB in bf16.
LARGEST_ON_CPU = 20 * GB
# Host memory of one process with torch and vLLM imported. CPU: forks share much, so
# 6 take 2.5 GB, and 14 (2 engines with TP=2, 4 ranks) 4.1 GB. GPU: assumed; CUDA's host part is larger.
_PROCESS_ON_CPU, _PROCESS = 0.5 * GB, 2 * GB
WEIGHT, OPTIMIZER = 2, 16  # bytes per LoRA parameter: in bf16; in fp32 with two moments and a gradient


def list_host_parts(config: Config, architecture: Architecture, engine_model: Model, store: int) -> dict[str, int]:
    """Return the bytes of each part by its name, without the parts that live on GPUs.

    Args:
        store: bytes of Ray's object store, in /dev/shm.
    """
    args, engines, width = config.args, config.args.vllm_num_engines, config.args.vllm_tensor_parallel_size
    base, lora = architecture.actor_bytes(args.experts == PACKED), architecture.count_lora_parameters(args)
    shape = Architecture.from_config(engine_model.config)
    # For each engine: the Ray actor, the engine core, and the workers if there are several. And the trainer, and Ray's.
    processes = engines * (2 + (width if width > 1 else 0)) + config.actor_ranks + 2
    parts: dict[str, float] = {}
    on_cpu = not is_for_gpus(architecture)
    if on_cpu:
        parts["model of the actor"] = (1 if args.actor_shard == ZERO3 else config.actor_ranks) * sum(base.values())
    elif args.offload:
        parts["offloaded model, pinned"] = count_pinned(base.values(), config.actor_ranks)
    if on_cpu or args.adam_offload:
        parts["optimizer of the adapter"] = OPTIMIZER * lora
    if on_cpu:
        cache = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 4) * 2**30  # of a worker; vLLM reads the same
        parts |= {"engines' models": engines * engine_model.bf16_bytes}
        parts |= {"engines' key/value caches": config.engine_gpus * cache}
    if args.vllm_enable_sleep and args.actor_shard != OF_ENGINE:
        # vLLM 0.29 moves them; 0.15 leaves them on the GPU, where gpu_memory.py counts them as well.
        asleep = count_pinned(shape.actor_bytes(shape.mxfp4).values(), width)
        parts["engines' weights while they sleep, pinned"] = engines * asleep
    # The first rank has one, and each engine's actor one, beside those in the object store.
    parts["adapter, on its way to the engines"] = (1 + engines) * WEIGHT * lora
    parts["Ray's object store, in /dev/shm"] = store
    parts[f"{processes} processes"] = processes * (_PROCESS_ON_CPU if on_cpu else _PROCESS)
    return {name: int(count) for name, count in parts.items()}


def is_for_gpus(architecture: Architecture) -> bool:
    """Return whether a run of this model is planned for GPUs: always, except for tiny models on the CPU stack."""
    return not is_cpu_stack() or sum(architecture.actor_bytes(packed=False).values()) > LARGEST_ON_CPU


def count_pinned(sizes: Iterable[int], ranks: int) -> int:
    """Return the bytes that all ranks allocate to hold parameters of these sizes in pinned ZeRO-3 shards.

    PyTorch rounds each block of pinned memory up to a power of two
    (https://docs.pytorch.org/docs/main/generated/torch.cuda.memory.host_memory_stats.html). For the 120b on 4 ranks
    that adds 1%, since a quarter of an expert tensor is just below 1 GiB. On 6 ranks it adds half.
    """
    return ranks * sum(1 << (math.ceil(size / ranks) - 1).bit_length() for size in sizes)
