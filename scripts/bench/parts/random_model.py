"""Checkpoints with the sizes of gpt-oss-120b but fewer layers and experts, and random weights."""

import math
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo.checkpoint import adapter_files
from grpo.model.architecture import ATTENTION_PROJECTIONS, Architecture, is_packed
from grpo.model.model_files import read_json
from scripts.checkpoint_writer import TensorOutput, as_bytes, write_shards
from scripts.tiny_model.checkpoint import write_config, write_json
from scripts.tiny_model.warm_start import tiny_config

FULL = Architecture(
    layers=36,
    hidden=2880,
    heads=64,
    key_value_heads=8,
    head_dim=64,
    experts=128,
    experts_per_token=4,
    intermediate=2880,
    vocabulary=201088,
    attention_bias=True,
    mxfp4=True,
)
BF16_BYTES = 2 * sum(math.prod(shape) for shape in FULL.parameters().values())
SHARD_BYTES = 1_000_000_000


def write_random_config(
    folder: Path, layers: int, experts: int, vocabulary: int = 1024, intermediate: int = FULL.intermediate
) -> Architecture:
    """Write the config.json of an MXFP4 checkpoint with the 120b's attention; return its architecture."""
    config = tiny_config(vocabulary)
    config.update(
        {
            "hidden_size": FULL.hidden,
            "intermediate_size": intermediate,
            "num_attention_heads": FULL.heads,
            "num_key_value_heads": FULL.key_value_heads,
            "head_dim": FULL.head_dim,
            "num_hidden_layers": layers,
            "layer_types": [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)],
            "num_local_experts": experts,
            "num_experts_per_tok": min(FULL.experts_per_token, experts),
            "sliding_window": 128,
        }
    )
    folder.mkdir(parents=True)
    write_config(folder, config, stop_ids=[1], pad_id=0)
    return Architecture.from_config(read_json(folder / "config.json"))


def write_random_model(folder: Path, layers: int, experts: int, **sizes: int) -> None:
    """Write the whole checkpoint; arguments as for `write_random_config`."""
    architecture = write_random_config(folder, layers, experts, **sizes)
    generator = torch.Generator().manual_seed(0)
    outputs = []
    for name, shape in architecture.stored().items():
        dtype = "U8" if is_packed(name) else "BF16"
        outputs.append(TensorOutput(name, dtype, shape, partial(_random, name, shape, generator)))
    write_shards(outputs, folder, SHARD_BYTES)


def write_random_adapter(folder: Path, base: Path, rank: int) -> None:
    """Write an adapter of all attention projections of the model in `base`: bf16, in PEFT's format."""
    architecture = Architecture.from_config(read_json(base / "config.json"))
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for module in adapter_files.attention_modules(architecture.layers, list(ATTENTION_PROJECTIONS)):
        outputs, inputs = architecture.projection(module.rpartition(".")[2])
        for half, shape in zip(adapter_files.HALVES, ((rank, inputs), (outputs, rank)), strict=True):
            half_tensor = torch.randn(shape, generator=generator) * 0.02
            tensors[adapter_files.tensor_name(module, half)] = half_tensor.to(torch.bfloat16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / adapter_files.WEIGHTS, metadata={"format": "pt"})
    settings = {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(ATTENTION_PROJECTIONS)}
    write_json(folder / adapter_files.CONFIG, {"peft_type": "LORA", "task_type": "CAUSAL_LM", **settings})


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator):
    """Return rows of random bytes for codes, scales from 2**-9 to 2**-7, and small numbers for the rest."""
    for _ in range(shape[0]):
        row = torch.Size(shape[1:])
        if name.endswith("_blocks"):
            part = torch.randint(256, row, dtype=torch.uint8, generator=generator)
        elif name.endswith("_scales"):
            part = torch.randint(118, 121, row, dtype=torch.uint8, generator=generator)
        else:
            part = (torch.randn(row, generator=generator) * 0.02).to(torch.bfloat16)
        yield as_bytes(part)
