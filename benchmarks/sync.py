"""The adapter to the engines: one call a tensor, as OpenRLHF sends weights, and ours, one buffer for all.

It uses real Ray and real vLLM engines, each with its tensor-parallel workers, and the attention of gpt-oss-120b: 288
adapter tensors with its shapes, 95.6 MB in bf16. The experts are few and small.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.engine import start_engines
from benchmarks.measure import compare, time_in_turn
from benchmarks.random_model import shrink, write_config
from grpo.hooks import vllm_engine
from grpo.lora.adapter import TensorSpec, layout
from grpo.model.architecture import ATTENTION_PROJECTIONS

_RANK = 64
_WORKER = "benchmarks.engine_worker.OneByOneWorker"


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
    specs = layout(shapes, shapes.values())
    flat = torch.randn(specs[-1].offset + specs[-1].numel, dtype=torch.bfloat16) * 0.01
    given = vllm_engine.engine_arguments() | {"load_format": "dummy", "skip_tokenizer_init": True}
    stub = mock.patch.multiple(vllm_engine, WORKER=_WORKER, engine_arguments=lambda: given)
    with tempfile.TemporaryDirectory() as model, stub:
        write_config(Path(model), shape)
        with start_engines(Path(model), size, 0, options.engines, rank=_RANK) as engines:
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


class _Counted:
    """Stands in for an engine's Ray actor and counts the calls that it passes on."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.calls = engine, 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.engine, name)


def _send_one_by_one(flat: torch.Tensor, specs: list[TensorSpec], engines: list[Any]) -> None:
    """Call every engine once per tensor, awaited before the next, as OpenRLHF 0.9.3 sends parameters."""
    import ray

    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="bench-sync-") as file:
        for spec in specs:
            data: Any = flat[spec.offset : spec.offset + spec.numel].view(torch.uint8).numpy()
            os.pwrite(file.fileno(), data, 0)
            name = f"{file.name}\n{spec.name}"
            ray.get([engine.update_weight.remote(name, dtype=flat.dtype, shape=spec.shape) for engine in engines])
