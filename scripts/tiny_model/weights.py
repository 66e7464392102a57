"""The trained weights of the tiny model, kept with the code: training takes minutes, and CPUs round differently."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FILE = Path(__file__).with_name("weights.safetensors")
CARD = FILE.with_suffix(".json")
_ROOT = FILE.parents[2]
# What the weights depend on besides rounding.
_SOURCES = (
    "scripts/tiny_model/demonstrations.py",
    "scripts/tiny_model/muon.py",
    "scripts/tiny_model/tokenizer.py",
    "scripts/tiny_model/warm_start.py",
    "scripts/tiny_model/words.txt",
    "grpo/model/mxfp4.py",
    "data/instructions.py",
    "data/synthetic.py",
)


def recipe(seed: int, steps: int) -> str:
    """Return a hash of the arguments and the code that a training depends on."""
    digest = hashlib.sha256(f"seed {seed} steps {steps}".encode())
    for source in _SOURCES:
        digest.update((_ROOT / source).read_bytes())
    return digest.hexdigest()


def facts(seed: int, steps: int) -> dict[str, Any] | None:
    """Return the facts about the kept weights, or None if they were trained by another recipe."""
    card = json.loads(CARD.read_text(encoding="utf-8"))
    return card["facts"] if card["recipe"] == recipe(seed, steps) else None


def read() -> dict[str, torch.Tensor]:
    """Return the kept tensors of a checkpoint file: blocks and scales uint8, all else bf16."""
    return load_file(FILE)


def keep(shards: Iterable[Path], about: dict[str, Any]) -> None:
    """Keep the weights of a checkpoint, and the facts about it."""
    tensors = {name: value for shard in shards for name, value in load_file(shard).items()}
    save_file(tensors, FILE, metadata={"format": "pt"})
    card = {"recipe": recipe(about["seed"], about["steps"]), "facts": about}
    CARD.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
