"""Checkpoints with the sizes of gpt-oss-120b but fewer layers and experts, and random weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.parts.random_values import fill_
from grpo.checkpoint import adapter_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, Architecture, is_packed
from grpo.model.model_files import read_json
from grpo.model.released import RELEASED
from scripts.checkpoint_writer import TensorOutput, as_bytes, write_shards
from scripts.tiny_model.checkpoint import write_config, write_json
from scripts.tiny_model.warm_start import tiny_config

FULL = RELEASED["openai/gpt-oss-120b"]
BF16_BYTES = 2 * sum(math.prod(shape) for shape in FULL.parameters().values())
SHARD_BYTES = 1_000_000_000


def write_model_config(folder: Path, shape: Architecture, stop_ids: Sequence[int] = (1,)) -> None:
    """Write the config.json of a model of this shape."""
    config = tiny_config(shape.vocabulary)
    numbers = {key: value for key, value in shape.config().items() if type(value) is int}
    kinds = ("sliding_attention", "full_attention")
    layers = [kinds[layer % 2] for layer in range(shape.layers)]
    config.update(numbers | {"layer_types": layers, "sliding_window": 128})
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config, stop_ids=list(stop_ids), pad_id=0)
    if not shape.mxfp4:
        written = read_json(folder / "config.json")
        del written["quantization_config"]
        write_json(folder / "config.json", written)


def write_random_model(folder: Path, vocabulary: int = 1024, **sizes: Any) -> None:
    """Write a whole MXFP4 checkpoint of the 120b's sizes, but for those that are given, such as its layers."""
    shape = replace(FULL, vocabulary=vocabulary, **sizes)
    shape = replace(shape, experts_per_token=min(FULL.experts_per_token, shape.experts))
    write_model_config(folder, shape)
    write_random_weights(folder, shape)


def write_random_weights(folder: Path, shape: Architecture) -> None:
    """Write the tensors of a checkpoint."""
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for name, size in shape.list_stored().items():
        dtype = "U8" if is_packed(name) else "BF16"
        outputs.append(TensorOutput(name, dtype, size, partial(_random, name, size, generator)))
    write_shards(outputs, folder, SHARD_BYTES)


def write_random_adapter(folder: Path, base: Path, rank: int) -> None:
    """Write an adapter of all attention projections of the model in `base`: bf16, in PEFT's format."""
    architecture = Architecture.from_config(read_json(base / "config.json"))
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for module in adapter_files.list_modules(architecture.layers, list(ATTENTION_PROJECTIONS)):
        outputs, inputs = architecture.projection(module.rpartition(".")[2])
        for half, shape in zip(adapter_files.HALVES, ((rank, inputs), (outputs, rank)), strict=True):
            half_tensor = torch.randn(shape, generator=generator) * 0.02
            tensors[adapter_files.tensor_name(module, half)] = half_tensor.to(torch.bfloat16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / adapter_files.WEIGHTS, metadata={"format": "pt"})
    settings = {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(ATTENTION_PROJECTIONS)}
    write_json(folder / adapter_files.CONFIG, {"peft_type": "LORA", "task_type": "CAUSAL_LM", **settings})


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Iterator[Any]:
    """Yield a tensor in parts of its first dimension."""
    part = torch.empty(shape[1:], dtype=torch.uint8 if is_packed(name) else torch.bfloat16)
    for _ in range(shape[0]):
        fill_(name, part, shape[-1], generator)
        yield as_bytes(part)
