"""The tiny model as files in the format of openai/gpt-oss-120b: MXFP4 experts in sharded safetensors with an index.

Its trained weights are beside this file. It was taught sums and differences in harmony: first right answers, then a
mixture of habits, of which only one is right, as in a base model. It knows the format and, apart from slips, the
arithmetic, but samples them unreliably; GRPO is there to improve that. The code of this training is in the git history.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from transformers import GptOssConfig

from scripts.checkpoint_writer import write_json
from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer

WEIGHTS = Path(__file__).with_name("weights.safetensors")
SHARD_BYTES = 400_000
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
# What the real config.json has even if it is transformers' default.
_ALSO_DEFAULTS = (
    "attention_bias", "attention_dropout", "head_dim", "hidden_act", "layer_types", "max_position_embeddings",
    "num_experts_per_tok", "num_key_value_heads", "output_router_logits", "rms_norm_eps", "router_aux_loss_coef",
    "sliding_window", "tie_word_embeddings", "use_cache", "vocab_size",
)  # fmt: skip


def write_model(directory: Path) -> None:
    """Write a whole checkpoint: tokenizer, settings, and the trained tensors in shards."""
    tokenizer, tensors = write_tokenizer(directory), load_file(WEIGHTS)
    config = tiny_config(len(tensors["model.embed_tokens.weight"]))
    write_config(directory, config, tokenizer.convert_tokens_to_ids(list(STOP_TOKENS)), tokenizer.pad_token_id)
    save_torch_state_dict(dict(sorted(tensors.items())), directory, max_shard_size=SHARD_BYTES)


def tiny_config(vocab_size: int) -> GptOssConfig:
    """The real architecture with 2 million parameters.

    Constraints: 32 values in an MXFP4 group, also in each half of an expert at TP=2; both products of an expert wider
    than 128 at TP=1 and 2, which vLLM's MXFP4 kernels for Hopper assert; a head size that vLLM's CPU attention
    supports; 2 key/value heads for TP=2; experts divisible by 4 ranks; kept weights below 2 MiB. The window is shorter
    than a prompt with its answer, so sliding and full layers differ.
    """
    return GptOssConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=192,
        num_hidden_layers=3,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=32,
        initializer_range=0.05,
        rope_theta=150000,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
    )


def write_config(
    directory: Path, config: GptOssConfig, stop_ids: Sequence[int], pad_id: int, has_mxfp4: bool = True
) -> None:
    """Write config.json and generation_config.json with the keys of the real files."""
    # transformers 4 has the two as the files do, 5 has one attribute for both.
    scaling = dict(getattr(config, "rope_parameters", None) or config.rope_scaling)
    theta = scaling.pop("rope_theta", None) or config.rope_theta
    content = config.to_diff_dict() | {name: getattr(config, name) for name in _ALSO_DEFAULTS}
    content |= {
        "architectures": ["GptOssForCausalLM"],
        "eos_token_id": stop_ids[0],
        "experts_per_token": config.num_experts_per_tok,
        "initial_context_length": scaling["original_max_position_embeddings"],
        "pad_token_id": pad_id,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "swiglu_limit": 7.0,
    }
    content |= {"quantization_config": QUANTIZATION_CONFIG} if has_mxfp4 else {}
    for name in ("dtype", "rope_parameters"):
        content.pop(name, None)
    write_json(directory / "config.json", dict(sorted(content.items())))
    generation = {"do_sample": True, "eos_token_id": stop_ids, "pad_token_id": pad_id}
    write_json(directory / "generation_config.json", generation)
