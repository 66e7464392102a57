"""Checkpoint files in the format of openai/gpt-oss-120b: MXFP4 experts in sharded safetensors with an index."""

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import GptOssConfig, GptOssForCausalLM

from grpo.model import mxfp4
from scripts.checkpoint_writer import write_json

EXPERT_WEIGHTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
# As in the real config.json: everything but the experts stays bf16.
QUANTIZATION_CONFIG = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def packed_tensors(model: GptOssForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint file in name order: experts as MXFP4, all else as bf16."""
    for name, value in sorted(model.state_dict().items()):
        if name.endswith(EXPERT_WEIGHTS):
            blocks, scales = mxfp4.quantize(value.detach())
            yield f"{name}_blocks", blocks
            yield f"{name}_scales", scales
        else:
            yield name, value.detach().to(torch.bfloat16).contiguous()


def count_parameters(tensors: dict[str, torch.Tensor]) -> int:
    """Return how many values the tensors of a checkpoint hold: two in a byte of blocks, none in scales."""
    values = {"blocks": 2, "scales": 0}
    return sum(tensor.numel() * values.get(name.rpartition("_")[2], 1) for name, tensor in tensors.items())


def write_config(directory: Path, config: GptOssConfig, stop_ids: list[int], pad_id: int) -> None:
    """Write config.json and generation_config.json with the keys of the real files."""
    # transformers 4 has the two as the files do, 5 has one attribute for both.
    scaling = dict(getattr(config, "rope_parameters", None) or config.rope_scaling)
    theta = scaling.pop("rope_theta", None) or config.rope_theta
    content = config.to_diff_dict() | {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": stop_ids[0],
        "experts_per_token": config.num_experts_per_tok,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "initial_context_length": scaling["original_max_position_embeddings"],
        "layer_types": config.layer_types,
        "max_position_embeddings": config.max_position_embeddings,
        "num_experts_per_tok": config.num_experts_per_tok,
        "num_key_value_heads": config.num_key_value_heads,
        "output_router_logits": False,
        "pad_token_id": pad_id,
        "quantization_config": QUANTIZATION_CONFIG,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "router_aux_loss_coef": config.router_aux_loss_coef,
        "sliding_window": config.sliding_window,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    for name in ("dtype", "rope_parameters"):
        content.pop(name, None)
    write_json(directory / "config.json", dict(sorted(content.items())))
    generation = {"do_sample": True, "eos_token_id": stop_ids, "pad_token_id": pad_id}
    write_json(directory / "generation_config.json", generation)
