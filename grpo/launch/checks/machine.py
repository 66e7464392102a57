"""The machine's resources: GPUs, memory, disk, writable places, a cluster to join."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo.launch import gpu_limits
from grpo.launch.config import Config
from grpo.launch.host_memory import LARGEST_ON_CPU
from grpo.launch.plan import Plan, size
from grpo.model.released import RELEASED
from grpo.run.run_files import RunFiles, step_name
from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.command import format_count
from grpo.stack.problem import Problem


def check_gpus(config: Config, plan: Plan) -> Iterator[Problem]:
    """Check the GPUs that Ray needs, unless it simulates them or they are in a cluster to join."""
    if is_cpu_stack():
        yield from _check_cpu_stack(config, plan)
    elif not os.environ.get("RAY_ADDRESS"):
        gpus, fault = machine.gpus(), machine.find_gpu_fault()
        if len(gpus) < config.gpus:
            what = f"{config.gpus} GPUs are needed, {len(gpus)} are visible" + (f" (NVML: {fault})" if fault else "")
            counts = "--vllm_num_engines, --vllm_tensor_parallel_size or --actor_num_gpus_per_node"
            see = "see nvidia-smi and CUDA_VISIBLE_DEVICES"
            yield Problem(what, f"use a smaller box (--gpus), or lower {counts}; {see}")
            return
        for gpu in gpus[: config.gpus]:
            if gpu.used > machine.GB:
                what = f"{size(gpu.used)} of GPU {gpu.index} are in use"
                yield Problem(what, "see nvidia-smi; wait, or use other GPUs")
        yield from gpu_limits.problems(config)


def _check_cpu_stack(config: Config, plan: Plan) -> Iterator[Problem]:
    """Refuse a model that is too large for CPUs, whether or not it is on this machine."""
    model, gpus = config.args.pretrain, len(machine.gpus())
    if model in RELEASED or (plan.model_bf16_bytes or 0) > LARGEST_ON_CPU:
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
