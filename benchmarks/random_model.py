"""Models with random weights in the shapes of gpt-oss: checkpoints of few layers, and values on a GPU.

The values have a sensible scale: activations stay finite, and tokens stay different.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grpo.model.architecture import Architecture, is_packed
from grpo.model.released import RELEASED

FULL = RELEASED["openai/gpt-oss-120b"]
_SHARD_BYTES = 1_000_000_000
_SCALES = (118, 122)  # of MXFP4, 2**-9 to 2**-6: a weight has a standard deviation of about 0.026


def fill_(name: str, values: torch.Tensor, inputs: int, generator: torch.Generator | None = None) -> None:
    """Fill a tensor, or a part of it, in place. A weight keeps the size of what it is applied to.

    Args:
        name: of the tensor in a checkpoint, in transformers, or in vLLM; in uint8, scales or blocks of MXFP4.
        inputs: the last dimension of the whole tensor.
    """
    if values.dtype == torch.uint8 and name.endswith(("_scales", "_scale")):
        values.random_(*_SCALES, generator=generator)
    elif values.dtype == torch.uint8:
        values.view(torch.int64).random_(-(2**63), None, generator=generator)  # 8 bytes at a time
    elif "norm" in name:
        values.fill_(1)
    else:
        # Embeddings are as large as what a layer adds to them. Otherwise all tokens of a sequence grow alike.
        values.normal_(0, 1 if "embed" in name else inputs**-0.5, generator=generator)


def fill_whole(name: str, shape: torch.Size, start: int, out: torch.Tensor) -> None:
    """Fill a whole parameter of a model, in place of a checkpoint's reader."""
    assert (start, out.numel()) == (0, shape.numel())
    fill_(name, out, shape[-1])


def write_config(folder: Path, shape: Architecture) -> Any:
    """Write configuration and tokenizer of a model without weights; return the tokenizer."""
    from scripts.tiny_model.checkpoint import tiny_config, write_config
    from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(shape.vocabulary)
    numbers = {key: value for key, value in shape.config().items() if type(value) is int}
    layers = [("sliding_attention", "full_attention")[layer % 2] for layer in range(shape.layers)]
    config.update(numbers | {"layer_types": layers, "sliding_window": 128})
    tokenizer = write_tokenizer(folder)
    write_config(folder, config, tokenizer.convert_tokens_to_ids(list(STOP_TOKENS)), pad_id=0, has_mxfp4=shape.mxfp4)
    return tokenizer


def write_model(folder: Path, shape: Architecture) -> Any:
    """Write a whole checkpoint, whose vocabulary is at least that of its tokenizer; return the tokenizer."""
    from huggingface_hub import save_torch_state_dict

    tokenizer = write_config(folder, shape)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, sizes in shape.list_stored().items():
        tensors[name] = torch.empty(sizes, dtype=torch.uint8 if is_packed(name) else torch.bfloat16)
        fill_(name, tensors[name], sizes[-1], generator)
    save_torch_state_dict(tensors, folder, max_shard_size=_SHARD_BYTES)
    return tokenizer


def shrink(vocabulary: int = 1024, **sizes: Any) -> Architecture:
    """Return gpt-oss-120b with other sizes, such as fewer layers."""
    shape = replace(FULL, vocabulary=vocabulary, **sizes)
    return replace(shape, experts_per_token=min(FULL.experts_per_token, shape.experts))
