"""The adapter to the engines: one call a tensor, as OpenRLHF sends weights, and ours, one buffer for all.

Real Ray and real vLLM engines, each with its tensor-parallel workers, with the attention of gpt-oss-120b: 288 adapter
tensors of its own shapes, 95.6 MB in bf16. The experts are few and small, since a sync does not touch them.
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from grpo.adapter import TensorSpec, layout
from grpo.checkpoint_files import read_json
from grpo.flags import ATTENTION_PROJECTIONS
from scripts.bench.harness import Result, time_in_turn
from scripts.bench.machine import Copy
from scripts.bench.parts.random_model import FULL, write_random_config
from scripts.tiny_model.checkpoint import write_json

RANK = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", type=int, default=2, help="vLLM engines (default: 2)")
    parser.add_argument("--tensor-parallel", type=int, default=2, help="workers of each engine (default: 2)")
    parser.add_argument("--layers", type=int, default=FULL.layers, help=f"layers of the model (default: {FULL.layers})")
    parser.add_argument("--repeat", type=int, default=3, help="timed rounds, of which the best counts (default: 3)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    import ray

    from grpo import sync

    if min(options.engines, options.tensor_parallel, options.layers, options.repeat) < 1:
        raise ValueError("--engines, --tensor-parallel, --layers and --repeat are at least 1")
    scratch = Path(tempfile.mkdtemp(prefix="bench-sync-"))
    try:
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=str(scratch / "ray")
        )
        engines = [_engine(options, scratch / "model") for _ in range(options.engines)]
        flat, specs = _adapter(options.layers)
        target = torch.empty_like(flat)
        timings = time_in_turn(
            {
                "stock": lambda: _tensor_by_tensor(flat, specs, engines),
                "ours": lambda: sync.send(flat, specs, engines),
                "copy": lambda: target.copy_(flat),
            },
            options.repeat,
        )
    finally:
        ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = {name: timing.seconds for name, timing in timings.items()}
    return Result(
        what=f"seconds to bring {len(specs)} adapter tensors ({flat.nbytes / 1e6:.1f} MB) into {options.engines} vLLM "
        f"engines x {options.tensor_parallel} workers",
        unit="s",
        stock=seconds["stock"],
        ours=seconds["ours"],
        higher_is_better=False,
        details={"one_copy_s": seconds["copy"], "ours_in_copies": seconds["ours"] / seconds["copy"]},
        extrapolation=(
            "gpt-oss-120b: the same tensors, shapes and processes; on GPUs the workers' copies go over PCIe",
            "assumes the adapter gathered on the host; the gather before it is one collective",
        ),
    )


def _adapter(layers: int) -> tuple[torch.Tensor, list[TensorSpec]]:
    """A random adapter: bf16 `[elements]`, and where its tensors lie."""
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": shape
        for layer in range(layers)
        for name in ATTENTION_PROJECTIONS
        for half, shape in zip("AB", _halves(*FULL.projection(name)), strict=True)
    }
    specs = layout(shapes, shapes.values())
    return torch.randn(specs[-1].offset + specs[-1].numel, dtype=torch.bfloat16) * 0.01, specs


def _halves(outputs: int, inputs: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (RANK, inputs), (outputs, RANK)


def _engine(options: argparse.Namespace, model: Path) -> Any:
    import ray
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

    if not model.exists():
        write_random_config(model, options.layers, experts=2, intermediate=32 * options.tensor_parallel)
        config = read_json(model / "config.json")
        del config["quantization_config"]  # vLLM on a CPU has no MXFP4
        write_json(model / "config.json", config)
    engine = LLMRayActor.options(num_cpus=1).remote(
        model=str(model),
        load_format="dummy",  # random weights
        skip_tokenizer_init=True,
        worker_extension_cls="scripts.bench.parts.sync_worker.OneByOneWorker",
        tensor_parallel_size=options.tensor_parallel,
        distributed_executor_backend="mp" if options.tensor_parallel > 1 else "uni",
        max_model_len=64,
        enforce_eager=True,
        dtype="bfloat16",
        additional_config={"lora_rank": RANK, "lora_scale": 2.0},
        num_gpus=1,
    )
    ray.get(engine.get_num_unfinished_requests.remote())
    return engine


def _tensor_by_tensor(flat: torch.Tensor, specs: list[TensorSpec], engines: list[Any]) -> None:
    """One call of every engine for each tensor, awaited before the next, as OpenRLHF 0.9.3 sends parameters."""
    import ray

    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="bench-sync-") as file:
        for spec in specs:
            tensor = flat[spec.offset : spec.offset + spec.numel]
            data: Any = tensor.view(torch.uint8).numpy()
            os.pwrite(file.fileno(), data, 0)
            name = f"{file.name}\n{spec.name}"
            ray.get([engine.update_weight.remote(name, dtype=flat.dtype, shape=spec.shape) for engine in engines])
