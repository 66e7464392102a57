"""The machine's resources: GPUs, memory, disk, writable places, Ray."""

import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo.launch import gpu_limits
from grpo.launch.config import Config
from grpo.launch.host_memory import LARGEST_ON_CPU
from grpo.launch.plan import Plan, size
from grpo.launch.supervise import base_dir, ray_head
from grpo.model.released import RELEASED
from grpo.run.run_files import RunFiles
from grpo.run.saved_steps import step_name
from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.counted import format_count
from grpo.stack.problem import Problem, UserError

LEAST_OPEN_FILES = 1024  # the usual soft limit
LEAST_THREADS = 1024  # a tiny run has some hundreds
LEAST_ADDRESS_SPACE = 64 * 10**9  # reserved rather than used


def check_gpus(config: Config, plan: Plan) -> Iterator[Problem]:
    """Check the GPUs that Ray needs, unless it simulates them or they are in a cluster to join."""
    if is_cpu_stack():
        if config.args.vllm_enable_sleep:
            yield Problem("--vllm_enable_sleep needs GPUs: vLLM cannot sleep on CPUs", "remove it")
        yield from check_cpu_stack(config, plan)
        return
    if os.environ.get("RAY_ADDRESS"):
        return
    gpus = machine.gpus()
    whose = f"{config.engine_gpus} for engines, {config.actor_ranks} for the actor"
    if config.args.colocate_all_models:
        whose = "each for an engine and the actor"
    if len(gpus) < config.gpus:
        fault = machine.find_gpu_fault()
        yield Problem(
            f"{config.gpus} GPUs are needed ({whose}), {len(gpus)} are visible"
            + (f" (NVML: {fault})" if fault else ""),
            "use a smaller box (--gpus), or lower NUM_ENGINES, ENGINE_TP or ACTOR_GPUS; see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES",
        )
        return
    for gpu in gpus[: config.gpus]:
        if gpu.used > machine.GB:
            yield Problem(f"{size(gpu.used)} of GPU {gpu.index} are in use", "see nvidia-smi; wait, or use other GPUs")
    yield from gpu_limits.problems(config)


def check_cpu_stack(config: Config, plan: Plan) -> Iterator[Problem]:
    """Refuse a model that is too large for CPUs, whether or not it is on this machine."""
    model, count = config.args.pretrain, plan.model_bf16_bytes
    if model not in RELEASED and (count or 0) <= LARGEST_ON_CPU:
        return
    large = f"MODEL {model}" + (f", {size(plan.model_actor_bytes)} in the actor," if count else "")
    gpus = machine.gpus()
    if gpus:
        yield Problem(
            f"{large} needs GPUs: there are {len(gpus)}, but .venv has the CPU stack",
            "scripts/setup.sh --gpu installs the GPU stack",
        )
    else:
        yield Problem(
            f"{large} needs {format_count(config.gpus, 'GPU')}, but this machine has none",
            "use a machine with GPUs (scripts/setup.sh then installs the GPU stack), or run ./train_grpo.sh --tiny",
        )


def check_memory(plan: Plan) -> Iterator[Problem]:
    """Check host memory and /dev/shm on this node."""
    if os.environ.get("RAY_ADDRESS"):
        return
    free, shared = machine.memory_available(), machine.shared_memory_free()
    if plan.host_bytes and free < plan.host_bytes:
        largest = max(plan.host_memory, key=lambda part: plan.host_memory[part])
        yield Problem(
            f"{size(free)} of memory is free, but the run needs about {size(plan.host_bytes)}, "
            f"of which {size(plan.host_memory[largest])} for {largest}",
            "stop other programs, use fewer engines or ranks, or a larger machine",
        )
    if shared < plan.object_store_bytes:
        yield Problem(
            f"/dev/shm has {size(shared)} free, but Ray's object store needs {size(plan.object_store_bytes)}",
            "enlarge it (docker run --shm-size=16g; mount -o remount,size=16G /dev/shm)",
        )


def check_limits() -> Iterator[Problem]:
    """Check the shell's limits on what a process may have. Ray's and torch's processes need much of both."""
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC)
    (_, files), (space, _), (threads, _) = map(resource.getrlimit, kinds)  # the launcher raises that of open files
    if files != resource.RLIM_INFINITY and files < LEAST_OPEN_FILES:
        yield Problem(
            f"a process may open {files} files, but Ray's need {LEAST_OPEN_FILES}",
            "an administrator raises the hard limit (ulimit -Hn)",
        )
    if space != resource.RLIM_INFINITY and space < LEAST_ADDRESS_SPACE:
        yield Problem(
            f"a process may have {size(space)} of address space, but a run needs {size(LEAST_ADDRESS_SPACE)}",
            "run ulimit -v unlimited",
        )
    if threads != resource.RLIM_INFINITY and threads < LEAST_THREADS and os.geteuid() != 0:  # root may have more
        yield Problem(
            f"you may have {threads} processes and threads in all, but a run needs {LEAST_THREADS}",
            f"run ulimit -u {LEAST_THREADS}; where that is forbidden, an administrator raises the hard limit",
        )


def check_is_new(config: Config, run_dir: Path) -> Iterator[Problem]:
    """Refuse a new run if its folders hold results of another run, or its own belongs to another user."""
    try:
        RunFiles(run_dir).refuse_another_owner()
    except UserError as error:
        yield error.problem
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        yield Problem(
            f"the run directory {run_dir} exists and is not empty", "give another --run-dir, or resume it with --resume"
        )
    checkpoints, metrics = Path(config.args.ckpt_path), Path(config.args.metrics_dir)
    files = RunFiles(run_dir, metrics)
    if any(checkpoints.glob(step_name("*"))):
        yield Problem(f"{checkpoints} has the checkpoints of another run", "use a separate CKPT_DIR for each run")
    if metrics != run_dir and any(file.exists() for file in (files.metrics, files.evals)):
        yield Problem(f"{metrics} has the metrics of another run", "use a separate METRICS_DIR for each run")


def check_disk(config: Config, plan: Plan, run_dir: Path) -> Iterator[Problem]:
    """Check write access and free space where results go, on each disk once."""
    checkpoints, metrics = Path(config.args.ckpt_path), Path(config.args.metrics_dir)
    folders = {checkpoints: "CKPT_DIR", metrics: "METRICS_DIR", run_dir: "--run-dir"}
    disks = set()
    for folder, name in folders.items():
        if fault := _write_fault(folder):
            yield Problem(f"{name}: {folder} cannot be written: {fault}", "choose a folder that you may write to")
            continue
        disk = machine.existing_parent(folder).stat().st_dev
        if disk in disks:
            continue
        disks.add(disk)
        needed = (plan.disk_bytes or 0) if folder == checkpoints else 0
        if machine.disk_free(folder) < needed + machine.GB:
            free, more = size(machine.disk_free(folder)), f"checkpoints need {size(needed)} and " if needed else ""
            yield Problem(
                f"{name}: {free} of disk space is free in {folder}, but {more}logs need 1 GB",
                "set CKPT_DIR or METRICS_DIR to another disk, or lower MAX_CHECKPOINTS",
            )


def _write_fault(folder: Path) -> str:
    """Return why no file can be written in a folder, which may not exist yet; "" if one can."""
    try:
        with tempfile.TemporaryFile(dir=machine.existing_parent(folder)) as file:
            file.write(b"1")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_ray() -> Iterator[Problem]:
    """Check that a cluster to join listens, or that our own has ports and a folder."""
    address = os.environ.get("RAY_ADDRESS")
    if address == "auto":
        yield Problem("RAY_ADDRESS is auto", "name the cluster as HOST:PORT, or unset RAY_ADDRESS")
    elif address and (why := ray_head.explain_silence(address)):
        yield Problem(f"no Ray cluster answers at RAY_ADDRESS {address} ({why})", "start it, or unset RAY_ADDRESS")
    if address:
        return
    try:
        with socket.socket() as probe:
            probe.bind(("", 0))
    except OSError as error:
        yield Problem(f"no port can be opened ({error})", "allow listening sockets in this sandbox or container")
    if not os.access("/tmp", os.W_OK) and len(os.environ.get("TMPDIR", "")) > base_dir.LONGEST_PARENT:
        yield Problem(
            "TMPDIR is too long for sockets, and /tmp is not writable",
            "set TMPDIR to a folder of at most 15 characters",
        )
