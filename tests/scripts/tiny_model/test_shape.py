"""The tiny model's shape: what the kernels of the engines ask of it, with one GPU an engine and with two."""

import pytest
from safetensors.torch import load_file

from grpo.model.mxfp4 import GROUP
from scripts.tiny_model.checkpoint import WEIGHTS, tiny_config

CONFIG = tiny_config(768)
LARGEST_FILE = 2 * 2**20


@pytest.mark.parametrize("workers", [1, 2])
def test_vllms_mxfp4_kernels_for_hopper_serve_it(workers: int) -> None:
    """A product of at most 128 columns gets a tile of 128, and Triton stops: its scales come in tiles of 256."""
    inner, rest = divmod(CONFIG.intermediate_size, workers)
    assert rest == 0 and inner % GROUP == CONFIG.hidden_size % (2 * GROUP) == 0
    assert 2 * inner > 128, "gate and up"
    assert CONFIG.hidden_size > 128, "down"


def test_an_engine_has_whole_heads_and_a_rank_whole_experts() -> None:
    assert CONFIG.num_key_value_heads % 2 == 0
    assert CONFIG.num_attention_heads % CONFIG.num_key_value_heads == 0
    assert CONFIG.num_attention_heads > CONFIG.num_key_value_heads, "grouped, as in gpt-oss"
    assert CONFIG.num_local_experts % 4 == 0 and CONFIG.num_experts_per_tok < CONFIG.num_local_experts


def test_the_kept_weights_have_this_shape_and_stay_small() -> None:
    tensors = load_file(WEIGHTS)
    blocks = tensors["model.layers.0.mlp.experts.gate_up_proj_blocks"]
    assert blocks.shape == (
        CONFIG.num_local_experts, 2 * CONFIG.intermediate_size, CONFIG.hidden_size // GROUP, GROUP // 2
    )  # fmt: skip
    assert WEIGHTS.stat().st_size < LARGEST_FILE, "each change of them stays in git's history"
