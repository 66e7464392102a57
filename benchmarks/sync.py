"""The adapter to the engines: one call a tensor, as OpenRLHF sends weights, and ours, one buffer for all.

It uses real Ray and real vLLM engines, each with its tensor-parallel workers, and the attention of gpt-oss-120b: 288
adapter tensors with its shapes, 95.6 MB in bf16. The experts are few and small.
"""

import argparse
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import torch

from benchmarks.measure import compare, time_in_turn
from benchmarks.random_model import shrink, write_config
from grpo.launch.supervise import processes, ray_head
from grpo.lora import adapter
from grpo.model.architecture import ATTENTION_PROJECTIONS, NO_SHARD
from grpo.stack import rendezvous

_RANK = 64
_WORKER = "benchmarks.engine_worker.OneByOneWorker"
_END_SECONDS = 30.0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Send an adapter both ways."""
    size = options.tensor_parallel
    # vLLM on a CPU does not support MXFP4.
    shape = shrink(layers=options.layers, experts=2, intermediate=32 * size, mxfp4=False)
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": matrix
        for layer in range(shape.layers)
        for name in ATTENTION_PROJECTIONS
        for half, matrix in (("A", (_RANK, shape.projection(name)[1])), ("B", (shape.projection(name)[0], _RANK)))
    }
    specs = adapter.layout(shapes, shapes.values())
    flat = torch.randn(specs[-1].offset + specs[-1].numel, dtype=torch.bfloat16) * 0.01
    with tempfile.TemporaryDirectory() as model:
        write_config(Path(model), shape)
        with _start_engines(Path(model), options.engines, size) as engines:
            from grpo.lora import sync

            ways = {"stock": _send_one_by_one, "ours": sync.send}
            calls = {name: partial(send, flat, specs, engines) for name, send in ways.items()}
            seconds = time_in_turn(calls, options.repeat)
            counted: dict[str, list[Any]] = {name: [_Counted(engine) for engine in engines] for name in ways}
            for name, send in ways.items():
                send(flat, specs, counted[name])
    what = (
        f"seconds to bring {len(specs)} adapter tensors ({flat.nbytes / 1e6:.1f} MB) into {options.engines} vLLM "
        f"engines x {size} workers"
    )
    stock, ours = (counted[name][0].calls for name in ways)
    details = {"stock_calls_of_an_engine": stock, "our_calls_of_an_engine": ours}
    return compare(what, "s", seconds["stock"], seconds["ours"], details)


@contextmanager
def _start_engines(model: Path, count: int, workers: int) -> Iterator[list[Any]]:
    """Start Ray and engines with an adapter and random weights, as OpenRLHF does in a run, and end both."""
    with tempfile.TemporaryDirectory(prefix="", ignore_cleanup_errors=True) as name:  # short, for sockets lie in it
        # Before Ray is imported
        os.environ.update(ray_head.variables() | rendezvous.variables(Path(name, "rendezvous")))
        import ray
        from openrlhf.trainer.ray import create_vllm_engines

        from grpo.hooks import vllm_engine
        from grpo.stack import cluster

        given = vllm_engine.engine_arguments() | {"load_format": "dummy", "skip_tokenizer_init": True}
        stub = mock.patch.multiple(vllm_engine, WORKER=_WORKER, engine_arguments=lambda: given)
        total = count * workers
        with start_ray(Path(name, "ray"), total + 4, total), stub:
            args: Any = SimpleNamespace(
                lora_rank=_RANK, lora_alpha=2 * _RANK, routing_replay=False, parity_limit=0, actor_shard=NO_SHARD
            )
            engines = create_vllm_engines(
                count, workers, str(model), 1, False, True, True, 512,
                gpu_memory_utilization=0.3, adapter_config=adapter.engine_config(args),
            )  # fmt: skip
            ray.get(cluster.engines_ready(engines))
            yield engines


@contextmanager
def start_ray(folder: Path, cpus: int, gpus: int = 0) -> Iterator[None]:
    """Start Ray and connect to it; at the end, stop it and delete the shared memory that its processes still use.

    Ray kills vLLM's processes. They then leave sockets, and queues of up to 160 MiB and semaphores under /dev/shm. The
    core of an engine whose actor is killed lives on. All are found by a mark in their environment.

    Args:
        folder: for the files of Ray and the sockets of vLLM. The caller deletes it.
        cpus: and ``gpus``: how many Ray schedules; they need not exist.
    """
    import ray  # only now: it reads its variables when it is imported

    ray_head.ease_start()
    mark = uuid.uuid4().hex
    try:
        with mock.patch.dict(os.environ, {"VLLM_RPC_BASE_PATH": str(folder), processes.RUN_ID_VARIABLE: mark}):
            ray.init(
                address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False,
                object_store_memory=300_000_000, _temp_dir=str(folder),
            )  # fmt: skip
        yield
    finally:
        mine = processes.find_marked(mark)
        memory = processes.find_shared_memory(process.pid for process in mine)
        ray.shutdown()
        _, alive = psutil.wait_procs(mine, timeout=_END_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_END_SECONDS)
        processes.remove_shared_memory(memory)


class _Counted:
    """Stands in for an engine's Ray actor and counts the calls that it passes on."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.calls = engine, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.engine, name)


def _send_one_by_one(flat: torch.Tensor, specs: list[adapter.TensorSpec], engines: list[Any]) -> None:
    """Call every engine once per tensor, awaited before the next, as OpenRLHF 0.9.3 sends parameters."""
    import ray

    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="bench-sync-") as file:
        for spec in specs:
            data: Any = flat[spec.offset : spec.offset + spec.numel].view(torch.uint8).numpy()
            os.pwrite(file.fileno(), data, 0)
            name = f"{file.name}\n{spec.name}"
            ray.get([engine.update_weight.remote(name, dtype=flat.dtype, shape=spec.shape) for engine in engines])
