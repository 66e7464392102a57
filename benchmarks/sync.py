"""The adapter to the engines: one call a tensor, as OpenRLHF sends weights, and ours, one buffer for all.

It uses real Ray and real vLLM engines, each with its tensor-parallel workers, and the attention of gpt-oss-120b: 288
adapter tensors with its shapes, 95.6 MB in bf16. The experts are few and small. `--expert-rank` gives them adapters,
of which rank 2480 has as many values as 128 experts of full size have at rank 16: 2.1 GB. Two engines of two workers
then need more than 24 GB of memory; `--engines 1` starts only one.
"""

import argparse
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.harness import Result, time_in_turn
from benchmarks.machine import Copy
from benchmarks.parts.random_model import FULL, write_model_config
from grpo.launch.supervise import ray_head
from grpo.lora.adapter import TensorSpec, is_split, layout
from grpo.lora.expert_form import name_modules
from grpo.model.architecture import ATTENTION_PROJECTIONS, Architecture
from grpo.stack import rendezvous
from scripts import local_ray

RANK = 64
SIZES = {"engines": 2, "tensor_parallel": 2, "layers": FULL.layers, "expert_rank": 0, "repeat": 3}


def run(options: argparse.Namespace, copy: Copy) -> Result:
    scratch = Path(tempfile.mkdtemp(prefix="bench-sync-"))
    os.environ.update(ray_head.variables() | rendezvous.variables(scratch / "rendezvous"))  # before Ray is imported
    from grpo.lora import sync

    try:
        workers = options.engines * options.tensor_parallel
        with local_ray.start_ray(scratch / "ray", workers + 4, workers):
            small = {"experts": 2, "experts_per_token": 2, "intermediate": 32 * options.tensor_parallel}
            # vLLM on a CPU does not support MXFP4.
            shape = replace(FULL, layers=options.layers, vocabulary=1024, mxfp4=False, **small)
            write_model_config(scratch / "model", shape)
            engines = _engines(options, scratch / "model")
            flat, specs = _adapter(shape, options.expert_rank)
            target = torch.empty_like(flat)
            timings = time_in_turn(
                {
                    "stock": lambda: _tensor_by_tensor(flat, specs, engines),
                    "ours": lambda: sync.send(flat, specs, engines),
                    "copy": lambda: target.copy_(flat),
                },
                options.repeat,
            )
            stock_calls, our_calls = _calls(engines, flat, specs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = {name: timing.seconds for name, timing in timings.items()}
    return Result(
        what=f"seconds to bring {len(specs)} adapter tensors ({flat.nbytes / 1e6:.1f} MB) into {options.engines} vLLM "
        f"engines x {options.tensor_parallel} workers",
        unit="s",
        stock=seconds["stock"],
        ours=seconds["ours"],
        details={
            "stock_calls_of_an_engine": stock_calls,
            "our_calls_of_an_engine": our_calls,
            "one_copy_s": seconds["copy"],
            "ours_in_copies_of_time": seconds["ours"] / seconds["copy"],
            "ours_in_copies_of_traffic": traffic(specs, options.engines, options.tensor_parallel),
        },
        extrapolation=(
            "gpt-oss-120b: the same tensors, shapes and processes; on GPUs the workers' copies go over PCIe",
            "assumes the adapter gathered on the host; the gather before it is one collective",
        ),
    )


class CountedEngine:
    """Stands in for an engine's Ray actor and counts the calls that it passes on."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.calls = engine, 0

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            return getattr(self.engine, name).remote(*arguments, **named)

        return SimpleNamespace(remote=remote)


def _calls(engines: list[Any], flat: torch.Tensor, specs: list[TensorSpec]) -> tuple[int, int]:
    """Return how often one sync calls the first engine, the stock way and ours: each call waits for an answer."""
    from grpo.lora import sync

    stock: list[Any] = [CountedEngine(engine) for engine in engines]
    ours: list[Any] = [CountedEngine(engine) for engine in engines]
    _tensor_by_tensor(flat, specs, stock)
    sync.send(flat, specs, ours)
    return stock[0].calls, ours[0].calls


def traffic(specs: list[TensorSpec], engines: int, workers: int) -> float:
    """Return the memory traffic of a sync in copies of the adapter; a copy reads and writes every byte once.

    The put is one copy. Each worker copies its slices and sums them up while they are in its cache. The trainer sums up
    everything.
    """
    own = sum(spec.numel // (workers if is_split(spec.name) else 1) for spec in specs)
    return 1 + 0.5 + engines * workers * own / sum(spec.numel for spec in specs)


def _adapter(model: Architecture, expert_rank: int) -> tuple[torch.Tensor, list[TensorSpec]]:
    """Return a random adapter: bf16 `[elements]`, and the location of its tensors."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(model.layers):
        for name in ATTENTION_PROJECTIONS:
            outputs, inputs = model.projection(name)
            for half, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                shapes[f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight"] = shape
        for name, module in name_modules(layer).items() if expert_rank else ():
            inputs, outputs = model.expert_projection(name)
            for half, matrix in (("A", (expert_rank, inputs)), ("B", (outputs, expert_rank))):
                shapes[f"base_model.model.{module}.lora_{half}.weight"] = model.experts, *matrix
    specs = layout(shapes, shapes.values())
    return torch.randn(specs[-1].offset + specs[-1].numel, dtype=torch.bfloat16) * 0.01, specs


def _engines(options: argparse.Namespace, model: Path) -> list[Any]:
    """Start engines as OpenRLHF's create_vllm_engines does, but with random weights and the stock way's worker."""
    import ray
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from grpo.rollout.engine import arguments

    size = options.tensor_parallel
    group = placement_group([{"GPU": 1, "CPU": 1}] * (options.engines * size), strategy="PACK")
    ray.get(group.ready())
    engines = []
    for first in range(0, options.engines * size, size):
        strategy = PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=True, placement_group_bundle_index=first
        )
        own = int(size == 1)  # with more workers, each is a Ray actor with a bundle
        engine = LLMRayActor.options(num_cpus=own, num_gpus=own, scheduling_strategy=strategy).remote(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            worker_extension_cls="benchmarks.parts.sync_worker.OneByOneWorker",
            tensor_parallel_size=size,
            bundle_indices=None if own else list(range(first, first + size)),
            max_model_len=64,
            enforce_eager=True,
            dtype="bfloat16",
            additional_config={"lora_rank": RANK, "lora_scale": 2.0, "expert_rank": options.expert_rank},
            num_gpus=1,
            **{"distributed_executor_backend": "uni" if own else "ray"} | arguments(size),
        )
        engines.append(engine)
    ray.get([engine.get_num_unfinished_requests.remote() for engine in engines])
    return engines


def _tensor_by_tensor(flat: torch.Tensor, specs: list[TensorSpec], engines: list[Any]) -> None:
    """Call every engine once per tensor, awaited before the next, as OpenRLHF 0.9.3 sends parameters."""
    import ray

    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="bench-sync-") as file:
        for spec in specs:
            tensor = flat[spec.offset : spec.offset + spec.numel]
            data: Any = tensor.view(torch.uint8).numpy()
            os.pwrite(file.fileno(), data, 0)
            name = f"{file.name}\n{spec.name}"
            ray.get([engine.update_weight.remote(name, dtype=flat.dtype, shape=spec.shape) for engine in engines])
