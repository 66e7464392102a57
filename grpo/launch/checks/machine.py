"""The machine: GPUs and what fits on them, memory, disk, the folders of a run, and a cluster to join."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo.flags import boxes
from grpo.flags.parser import make_parser
from grpo.flags.upstream import make_words
from grpo.launch import gpu_memory
from grpo.launch.config import Config
from grpo.launch.gpu_memory import Needs, find_longest, needs
from grpo.launch.host_memory import LARGEST_ON_CPU
from grpo.launch.plan import Plan, size
from grpo.model import model_files
from grpo.model.architecture import EXPERTS_TARGET, NO_SHARD, OF_ENGINE, PACKED, ZERO3
from grpo.model.released import CONTEXT, RELEASED
from grpo.run.run_files import RunFiles, step_name
from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.command import format_count
from grpo.stack.problem import Problem

FUSED = ("9.0", "10.0")  # where torch._grouped_mm is one kernel: Hopper, and Blackwell of data centres
_LEAST_DRIVERS = {"nvidia-cuda-runtime-cu12": 525, "nvidia-cuda-runtime": 580}  # of CUDA 12 and 13, by package
_SHORTEST = 1024  # tokens that are worth training on
_LARGEST_SHARE = 0.95  # of a GPU for an engine alone; CUDA and fragments take the rest
Change = dict[str, Any]  # of flags
_ON_HOST: Change = {"offload": True, "actor_shard": ZERO3}


def check_gpus(config: Config, plan: Plan) -> Iterator[Problem]:
    """Check the GPUs that Ray needs, unless it simulates them or they are in a cluster to join."""
    if is_cpu_stack():
        yield from _check_cpu_stack(config, plan)
    elif not os.environ.get("RAY_ADDRESS"):
        if lack := boxes.find_lack_here(vars(config.args)):
            fault = machine.find_gpu_fault()
            yield Problem(lack.what + f" (NVML: {fault})" * bool(fault), lack.remedy)
            return
        for gpu in machine.gpus()[: config.gpus]:
            if gpu.used > machine.GB:
                what = f"{size(gpu.used)} of GPU {gpu.index} are in use"
                yield Problem(what, "see nvidia-smi; wait, or use other GPUs")
        yield from _check_driver()
        yield from _check_models(config)
        yield from check_gpu_memory(config)


def _check_driver() -> Iterator[Problem]:
    driver = machine.find_driver()
    for package, least in _LEAST_DRIVERS.items():
        with suppress(PackageNotFoundError):
            version(package)
            if driver and int(driver.partition(".")[0]) < least:
                what = f"the NVIDIA driver is {driver}, and the installed CUDA packages need {least} or newer"
                yield Problem(what, "update the driver; docs/boxes.md lists the least one of each stack")


def _check_models(config: Config) -> Iterator[Problem]:
    """Refuse GPU models that lack kernels. vLLM would, once it has loaded the model."""
    old = [gpu for gpu in machine.gpus() if float(gpu.capability) < float(min(machine.MODELS, key=float))]
    for name, capability in {gpu.name: gpu.capability for gpu in old}.items():
        what = f"{name} has compute capability {capability}, for which vLLM has no kernels for bf16 and MXFP4"
        yield Problem(what, f"use GPUs of {machine.name_models(*machine.MODELS)}")
    shape = gpu_memory.find_architecture(config.args.engine_model)
    marlin = gpu_memory.find_gpu_of_marlin(shape)
    if marlin and not old and shape and shape.find_expert_rank(config.args):
        what = f"an adapter of the experts needs Triton's kernels; for {marlin.name} ({marlin.capability}), vLLM takes "
        remedy = f"remove {EXPERTS_TARGET} from --target_modules, or use GPUs of {machine.name_models(*FUSED)}"
        yield Problem(f"{what}Marlin's", remedy)


def _check_cpu_stack(config: Config, plan: Plan) -> Iterator[Problem]:
    """Refuse a model that is too large for CPUs, whether or not it is on this machine."""
    model, gpus = config.args.pretrain, len(machine.gpus())
    if model in RELEASED or (plan.model_bf16_bytes or 0) > LARGEST_ON_CPU:
        if gpus and (lack := boxes.find_lack(gpus, "nvidia-smi, CUDA_VISIBLE_DEVICES", vars(config.args))):
            yield lack
        what = f"MODEL {model} needs {format_count(config.gpus, 'GPU')}; there are {gpus}, and .venv has the CPU stack"
        install = "scripts/setup.sh --gpu installs the GPU stack"
        yield Problem(what, install if gpus else f"use a machine with GPUs, where {install}; or run with --tiny")


def check_memory(plan: Plan) -> Iterator[Problem]:
    """Check host memory and /dev/shm on this node."""
    if os.environ.get("RAY_ADDRESS"):
        return
    free, shared = machine.memory_available(), machine.shared_memory_free()
    if plan.host_bytes and free < plan.host_bytes:
        largest = max(plan.host_memory, key=lambda part: plan.host_memory[part])
        what = f"{size(free)} of memory is free, but the run needs about {size(plan.host_bytes)}, most for {largest}"
        yield Problem(what, "stop other programs, use fewer engines or ranks, or a larger machine")
    if shared < plan.object_store_bytes:
        what = f"/dev/shm has {size(shared)} free, but Ray's object store needs {size(plan.object_store_bytes)}"
        yield Problem(what, "enlarge it (docker run --shm-size=16g; mount -o remount,size=16G /dev/shm)")


def check_is_new(config: Config, run_dir: Path) -> Iterator[Problem]:
    """Refuse a new run if its folders hold results of another run."""
    checkpoints, metrics = Path(config.args.ckpt_path), Path(config.args.metrics_dir)
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        yield Problem(f"--run-dir {run_dir} exists and is not empty", "give another, or resume it with --resume")
    if any(checkpoints.glob(step_name("*"))):
        yield Problem(f"--ckpt_path {checkpoints} has the checkpoints of another run", "use one for each run")
    if metrics != run_dir and RunFiles(run_dir, metrics).metrics.exists():
        yield Problem(f"--metrics_dir {metrics} has the metrics of another run", "use one for each run")


def check_disk(config: Config, plan: Plan, run_dir: Path) -> Iterator[Problem]:
    """Check write access and free space where results go."""
    places = {"--ckpt_path": Path(config.args.ckpt_path), "--metrics_dir": Path(config.args.metrics_dir)}
    for name, folder in (places | {"--run-dir": run_dir}).items():
        try:
            with tempfile.TemporaryFile(dir=machine.existing_parent(folder)) as file:
                file.write(b"1")
        except OSError as error:
            what = f"{name}: {folder} cannot be written: {error.strerror}"
            yield Problem(what, "choose a folder that you may write to, on a disk with room")
            continue
        needed = (plan.disk_bytes or 0) * (name == "--ckpt_path") + int(machine.GB)  # the logs need 1 GB
        if (free := machine.disk_free(folder)) < needed:
            what = f"{name}: {size(free)} of disk space is free in {folder}, but {size(needed)} are needed"
            yield Problem(what, "set --ckpt_path or --metrics_dir to another disk, or lower --max_ckpt_num")
            return  # the others may be on the same disk


def check_ray() -> Iterator[Problem]:
    """Check that a cluster to join listens: Ray would wait for it for minutes."""
    if not (address := os.environ.get("RAY_ADDRESS")):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        what = f"no Ray cluster answers at RAY_ADDRESS {address} ({error})"
        yield Problem(what, "start it, name it as HOST:PORT, or unset RAY_ADDRESS")


def check_gpu_memory(config: Config) -> Iterator[Problem]:
    """Yield what cannot fit, with the first remedy that would help. The GPUs may be those of another machine."""
    args, need = config.args, needs(config)
    if need is None or need.length > _find_positions(args.pretrain):
        return  # beyond the model's positions, another check refuses the length
    gpu = machine.find_gpu_that_cannot_share()
    if gpu and args.actor_shard == OF_ENGINE:
        yield Problem(
            f"--actor_shard engine needs GPUs of compute capability {machine.name_models(machine.SHARES_MODEL)}; "
            f"{gpu.name} has {gpu.capability}, where vLLM arranges the experts in another way, or lacks kernels",
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
    changes: list[Change] = [
        {"attn_implementation": "sinks"},
        {"gradient_checkpointing": True},
        {"experts": PACKED, "offload": False},
        {"micro_train_batch_size": 1},
        {"adam_offload": True},
        *([{"actor_shard": ZERO3}] if config.actor_ranks > 1 else []),
    ]
    more = "use more --actor_num_gpus_per_node"
    if need.shared:
        if config.args.vllm_tensor_parallel_size == 1 and not machine.find_gpu_that_cannot_share():
            changes.append({"actor_shard": OF_ENGINE, "experts": PACKED})
        changes.append({"vllm_enable_sleep": True})
        more = "give engine and actor GPUs of their own (--gpus 2)"
    elif config.args.actor_shard == NO_SHARD:
        more += " with --actor_shard zero3"
    if remedy := _find_first(config, changes):
        return remedy
    if (limit := find_longest(config)) >= _SHORTEST:
        return f"lower --prompt_max_len + --generate_max_len to {limit:,}, or {more}"
    then = _find_first(config, [_ON_HOST])
    return f"{then}, or {more}" if then else f"{more}, or GPUs with more memory"


def _find_remedy_of_copies(config: Config) -> str:
    """Return what fits if engine and actor hold the model twice. Micro-batches that are not given adapt."""
    shards = (NO_SHARD, ZERO3) if config.actor_ranks > 1 else (NO_SHARD,)
    changes = [*({"actor_shard": shard} for shard in shards), _ON_HOST]
    return (
        _find_first(config, changes, micro_train_batch_size=1) or "give engine and actor GPUs of their own (--gpus 2)"
    )


def _find_first(config: Config, changes: list[Change], **also: Any) -> str:
    """Return the first change with which a GPU suffices, as a remedy; "" if there is none."""
    for change in changes:
        if (need := needs(config, **change | also)) and need.peak <= need.gpu:
            changed = {name: value for name, value in change.items() if getattr(config.args, name) != value}
            return f"set {' '.join(make_words(make_parser(), changed))}"
    return ""


def warn_of_gpus() -> list[str]:
    """Return a line for each kind of GPU of this machine that has no fused grouped product."""
    gpus, fused = [] if is_cpu_stack() else machine.gpus(), machine.name_models(*FUSED)
    return [
        f"WARNING: {name} (compute capability {capability}) has no fused grouped product, as {fused}: "
        "PyTorch multiplies the actor's experts one by one. Steps are slower, with the same results"
        for name, capability in sorted({(gpu.name, gpu.capability) for gpu in gpus if gpu.capability not in FUSED})
    ]
