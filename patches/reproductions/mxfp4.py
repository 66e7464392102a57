"""The experts of a gpt-oss in MXFP4 are not loaded: the actor passes quantization_config=None.

transformers 5 then leaves them at random, with a warning; transformers 4 raises AttributeError.
"""

import sys
import tempfile
from typing import Any

import torch
from openrlhf.models import Actor
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip


def write_mxfp4(folder: str) -> None:
    """Write a gpt-oss whose experts are packed: blocks of 32 values in 16 bytes, and a scale for each."""
    model = GptOssForCausalLM(GptOssConfig(**SIZES)).bfloat16()
    model.config.quantization_config = {"quant_method": "mxfp4"}
    model.save_pretrained(folder)
    file = f"{folder}/model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": torch.full(blocks.shape[:-1], 120, dtype=torch.uint8)}
    save_file(tensors, file, {"format": "pt"})


def load(folder: str, seed: int) -> torch.Tensor:
    """Return the logits of the model, loaded with this seed, on which they must not depend."""
    torch.manual_seed(seed)
    model = Actor(folder, attn_implementation="eager").model
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(8)[None]).logits
    return logits


with tempfile.TemporaryDirectory() as folder:
    write_mxfp4(folder)
    try:
        first, second = load(folder, 0), load(folder, 1)
    except AttributeError as error:
        sys.exit(f"an MXFP4 checkpoint does not load: {error}")
if not torch.equal(first, second):
    sys.exit(f"the experts are random: two loads differ by up to {(first - second).abs().max():.3f} in the logits")
