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
# Host memory of one process with torch and vLLM imported. CPU: fitted to 7.9 GB (2 engines, 2 ranks) and
# 12.4 GB (2 engines with TP=2, 4 ranks). GPU: assumed; CUDA's host part is larger.
_PROCESS_BYTES = {True: 0.75 * GB, False: 2 * GB}


def host_memory(
    config: Config, model: Model, engine_model: Model, optimizer_bytes: int, object_store_bytes: int
) -> dict[str, int]:
    """Return the bytes of each part by its name, without the parts that live on GPUs.

    Args:
        optimizer_bytes: of the adapter's fp32 weights, gradients and moments, over all ranks.
        object_store_bytes: of Ray's object store, in /dev/shm.
    """
    args = config.args
    architecture = Architecture.from_config(model.config)
    cpu = not is_for_gpus(architecture)
    parts = {}
    if cpu:
        copies = 1 if args.actor_shard == ZERO3 else config.actor_ranks
        parts["model of the actor"] = copies * sum(actor_bytes(config, model).values())
    elif args.offload:
        parts["offloaded model, pinned"] = pinned_bytes(actor_bytes(config, model).values(), config.actor_ranks)
    if args.adam_offload or cpu:
        parts["optimizer of the adapter"] = optimizer_bytes
    if cpu:
        parts["engines' models"] = args.vllm_num_engines * engine_model.bf16_bytes
        parts["engines' key/value caches"] = config.engine_gpus * kv_cache_bytes()
    if args.vllm_enable_sleep and args.actor_shard != OF_ENGINE:
        shape, width = Architecture.from_config(engine_model.config), args.vllm_tensor_parallel_size
        # vLLM 0.29 moves them; 0.15 leaves them on the GPU, where gpu_memory.py counts them as well.
        asleep = pinned_bytes(shape.actor_bytes(shape.mxfp4).values(), width)
        parts["engines' weights while they sleep, pinned"] = args.vllm_num_engines * asleep
    # The first rank has one, and each engine's actor one, beside those in the object store.
    parts["adapter, on its way to the engines"] = (
        (1 + args.vllm_num_engines) * 2 * architecture.count_lora_parameters(args)
    )
    parts["Ray's object store, in /dev/shm"] = object_store_bytes
    parts[f"{processes(config)} processes"] = int(processes(config) * _PROCESS_BYTES[cpu])
    return parts


def is_for_gpus(architecture: Architecture) -> bool:
    """Return whether a run of this model is planned for GPUs: always, except for tiny models on the CPU stack."""
    return not is_cpu_stack() or sum(architecture.actor_bytes(packed=False).values()) > LARGEST_ON_CPU


def actor_bytes(config: Config, model: Model) -> dict[str, int]:
    """Return the bytes of each parameter of the actor."""
    architecture = Architecture.from_config(model.config)
    return architecture.actor_bytes(config.args.experts == PACKED)


def pinned_bytes(sizes: Iterable[int], ranks: int) -> int:
    """Return the bytes that all ranks allocate to hold parameters of these sizes in pinned ZeRO-3 shards.

    PyTorch rounds each block of pinned memory up to a power of two
    (https://docs.pytorch.org/docs/main/generated/torch.cuda.memory.host_memory_stats.html). For the 120b on 4 ranks
    that adds 1%, since a quarter of an expert tensor is just below 1 GiB. On 6 ranks it adds half.
    """
    shares = (math.ceil(size / ranks) for size in sizes)
    return ranks * sum(1 << (share - 1).bit_length() for share in shares)


def processes(config: Config) -> int:
    """Return how many processes of the run import torch: engines with their workers, ranks, trainer, Ray's own."""
    tensor_parallel = config.args.vllm_tensor_parallel_size
    # For each engine: the Ray actor, the engine core, and the workers if there are several.
    engines = config.args.vllm_num_engines * (2 + (tensor_parallel if tensor_parallel > 1 else 0))
    return engines + config.actor_ranks + 2


def kv_cache_bytes() -> int:
    """Return the key/value cache of one CPU engine worker in bytes; vLLM reads the same variable, in GiB."""
    return int(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 4) * 2**30)
