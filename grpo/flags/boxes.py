"""Smaller boxes, and the tiny run: the values of some flags in place of those of the script."""

import math
import os
from collections.abc import Mapping
from typing import Any

from grpo.stack import checkout, machine
from grpo.stack.problem import Problem

Values = dict[str, Any]
ENGINE_SHARE = 0.9  # of a GPU that an engine has alone
_SHAPE = ("vllm_num_engines", "vllm_tensor_parallel_size", "actor_num_gpus_per_node")
# GPUs of a box: engines, GPUs of each, GPUs of the actor. A box of 8 has those of the script.
BOXES: dict[int, tuple[int, ...]] = {8: (), 4: (1, 2, 2), 2: (1, 1, 1), 1: (1, 1, 1)}
# Engines and actor that share GPUs have the whole box each.
_SHARED = {8: (4, 2, 8), 4: (2, 2, 4), 2: (2, 1, 2), 1: (1, 1, 1)}
_OF_ENGINES = ("vllm_num_engines", "vllm_tensor_parallel_size")
_OF_ACTOR = ("actor_num_nodes", "actor_num_gpus_per_node")
_TINY_PAIRS = 2
_TINY_ENGINE = 6e9  # bytes, most of which are vLLM's buffers: a large cache takes seconds to start
_TINY: Values = {
    "vllm_num_engines": 1,
    "vllm_tensor_parallel_size": 1,
    "actor_num_gpus_per_node": 2,
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "train_batch_size": 64,
    "micro_train_batch_size": 16,
    "micro_rollout_batch_size": 16,
    "prompt_max_len": 128,
    "generate_max_len": 48,
    "eval_n_samples_per_prompt": 1,
    "actor_learning_rate": 2e-3,  # a new adapter on a model of a few million parameters needs large steps
    "lr_scheduler": "constant_with_warmup",
    "lora_rank": 8,
    "lora_alpha": 16,
    "stage3_param_persistence_threshold": 4096,  # only matrices of the base are partitioned: saves time
    "num_episodes": 1,
    "max_steps": 10,
    "save_steps": 5,
}


def list_values(gpus: int | None, is_tiny: bool, given: Mapping[str, Any]) -> Values:
    """Return what --gpus and --tiny set, and what follows from sharing GPUs.

    Args:
        gpus: of --gpus; None without it.
        given: what the user set: edits of the script, and flags of the command line.
    """
    values = _list_tiny_values(given) if is_tiny else {}
    gpus = gpus or (_choose_tiny_gpus() if is_tiny else None)
    if given.get("actor_shard") == "engine":  # an engine for each rank of the actor
        count = gpus or (_TINY_PAIRS if is_tiny else 8)
        return values | dict(zip(_SHAPE, (count, 1, count), strict=True)) | {"colocate_all_models": True}
    if is_tiny and gpus is None:
        return values
    shape = (_SHARED if given.get("colocate_all_models") else BOXES)[gpus or 8]
    values |= dict(zip(_SHAPE, shape, strict=bool(shape)))
    if gpus == 2:
        values["actor_shard"] = "none"
    if gpus == 1:
        # Two processes must be able to share memory of the GPU; otherwise it holds the model twice.
        can_share = machine.find_gpu_that_cannot_share() is None
        values |= {"colocate_all_models": True, "actor_shard": "engine" if can_share else "none"}
    return values


def find_lack(gpus: int, of: str, values: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong if engines and actor need more GPUs than there are."""
    engines, ranks = (math.prod(values[name] for name in names) for names in (_OF_ENGINES, _OF_ACTOR))
    total = max(engines, ranks) if values["colocate_all_models"] else engines + ranks
    if total <= gpus or os.environ.get("RAY_ADDRESS"):
        return None
    box = max((size for size in BOXES if size <= gpus), default=1)
    remedy = f"remove {', '.join(f'--{name}' for name in (*_OF_ENGINES, *_OF_ACTOR))}: --gpus {box} chooses them"
    return Problem(f"engines ({engines}) and actor ({ranks}) need {total} GPUs of {gpus} ({of})", remedy)


def find_lack_here(values: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong if this machine, and no cluster, has to have the GPUs, and has too few."""
    here = "nvidia-smi, CUDA_VISIBLE_DEVICES"
    return None if checkout.is_cpu_stack() else find_lack(len(machine.gpus()), here, values)


def _choose_tiny_gpus() -> int | None:
    """Return the box of a tiny run that fits a machine with fewer than 3 GPUs."""
    if checkout.is_cpu_stack() or os.environ.get("RAY_ADDRESS"):
        return None
    return {1: 1, 2: 2}.get(len(machine.gpus()))


def _list_tiny_values(given: Mapping[str, Any]) -> Values:
    """Return the values of a tiny run, whose model and problems lie in the checkout's cache."""
    folder, is_cpu = checkout.TINY_MODEL, checkout.is_cpu_stack()
    values = _TINY | {"pretrain": str(folder / "mxfp4"), "prompt_data": str(folder / "train.jsonl")}
    values["engine_model"] = str(folder / ("bf16" if is_cpu else "mxfp4"))  # vLLM cannot load MXFP4 on CPU
    if is_cpu:
        values["enforce_eager"] = True  # a CPU has no graphs
        values["gradient_checkpointing"] = False  # it saves memory that a tiny model does not need, for a third pass
    if given.get("environment"):
        values["prompt_max_len"] = 208  # with the instructions of tools
    if (gpu := min((gpu.memory for gpu in machine.known_gpus()), default=0)) and not given.get("pretrain"):
        values["vllm_gpu_memory_utilization"] = round(min(ENGINE_SHARE, _TINY_ENGINE / gpu), 3)
    return values
