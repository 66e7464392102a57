"""The formula of the actor's memory, against measurements on an H100 and a loaded model; of the cache, against vLLM."""

import math
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import GptOssConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from grpo.model import loading
from grpo.model.architecture import Architecture
from grpo.model.footprint import IN_FLIGHT, WINDOW, Actor, Cache
from grpo.model.model_files import read
from grpo.model.released import CONTEXT, RELEASED

LARGE = RELEASED["openai/gpt-oss-120b"]
FLAGS = {
    "actor_shard": "none", "experts": "packed", "offload": False, "adam_offload": True, "lora_rank": 64,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "expert_rank": None, "adapter": None,
    "gradient_checkpointing": True, "attn_implementation": "sinks",
}  # fmt: skip


def make_actor(architecture: Architecture = LARGE, ranks: int = 4, **flags: object) -> Actor:
    return Actor(architecture, Namespace(**FLAGS | flags), ranks)


WHOLE, SHARDED = make_actor(), make_actor(actor_shard="zero3")


@pytest.mark.parametrize(("tokens", "measured"), [(4096, 2.8), (16_384, 4.8), (32_768, 7.5)])
def test_a_layer_needs_what_was_measured(tokens, measured):
    """docs/gpu.md: a full-size layer with gradient checkpointing, besides its weights."""
    parts = WHOLE.parts(1, tokens)
    assert (parts["computation of a layer"] + parts["unpacked experts"]) / 1e9 == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(("tokens", "measured"), [(4096, 9.8), (16_384, 12.2), (32_768, 15.4)])
def test_two_layers_and_the_head_need_what_was_measured(tokens, measured):
    """docs/gpu.md: 6.9 GB were held. The formula is at most 3% above the peak, and not below it."""
    two = make_actor(replace(LARGE, layers=2), ranks=1)
    parts = two.parts(1, tokens)
    of_pass = sum(size for name, size in parts.items() if name not in ("frozen base, packed", "adapter", "gradients"))
    assert 1 <= (6.9e9 + of_pass) / (measured * 1e9) < 1.03


def test_eager_attention_needs_what_was_measured():
    eager = make_actor(attn_implementation="eager")
    extra = eager.parts(1, 4096)["computation of a layer"] - WHOLE.parts(1, 4096)["computation of a layer"]
    assert extra / 1e9 == pytest.approx(8.7, rel=0.02)
    assert eager.parts(1, 16_384) != eager.parts(4, 4096)


@pytest.mark.parametrize("packed", [True, False])
def test_the_base_has_the_size_of_the_loaded_model(either_checkpoint, packed):
    architecture = Architecture.from_config(read(either_checkpoint).config)
    model = loading.load_gpt_oss(either_checkpoint, packed=packed, sharded=False)
    assert not list(model.parameters())
    held = sum(buffer.numel() * buffer.itemsize for name, buffer in model.named_buffers() if "inv_freq" not in name)
    parts = make_actor(architecture, experts="packed" if packed else "bf16").parts(1, 1)
    assert parts["frozen base, packed" if packed else "frozen base, bf16"] == held


def test_sharding_divides_the_base_and_gathers_a_layer():
    whole, shared = WHOLE.parts(1, 4096), SHARDED.parts(1, 4096)
    assert shared["frozen base, packed"] == pytest.approx(whole["frozen base, packed"] / 4)
    gathered = shared["gathered layer, and the largest tensor of the next"]
    assert "gathered layer, and the largest tensor of the next" not in whole
    assert whole["frozen base, packed"] / 36 < gathered < 2 * whole["frozen base, packed"] / 36
    assert "frozen base, packed" not in make_actor(actor_shard="zero3", offload=True).parts(1, 4096)


def test_memory_grows_with_tokens_and_not_with_their_split_into_rows():
    assert WHOLE.parts(4, 4096) == WHOLE.parts(1, 16_384)
    first, second, third = (sum(WHOLE.parts(1, tokens).values()) for tokens in (4096, 8192, 12_288))
    assert second - first == pytest.approx(third - second)
    held, kept = (make_actor(actor_shard="zero3", **flags).parts(1, 16_384) for flags in ({}, {"adam_offload": False}))
    assert kept["optimizer"] == 12 * LARGE.count_lora_parameters(Namespace(**FLAGS)) // 4 and "optimizer" not in held
    without = make_actor(actor_shard="zero3", gradient_checkpointing=False).parts(1, 16_384)
    assert without["computation of all layers"] == 36 * held["computation of a layer"]
    whole, wide = (sum(make_actor(experts=kind).parts(1, 16_384).values()) for kind in ("packed", "bf16"))
    assert sum(held.values()) < whole < wide


def ask_vllm(tokens: int, workers: int, chunk: int) -> int:
    """The bytes that vLLM wants for one sequence of the 120b, 18 layers of each kind."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=tokens),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=chunk),
        max_in_flight_tokens=chunk,  # what vLLM 0.29 reads in its place
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
    )
    shape = {"block_size": 16, "num_kv_heads": 8 // workers, "head_size": 64, "dtype": torch.bfloat16}
    specs = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=WINDOW)
    return 18 * sum(spec.max_memory_usage_bytes(config) for spec in specs)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tokens", [100, 1000, 4096, 5001, 131_072])
@pytest.mark.parametrize("chunk", [1, IN_FLIGHT])
def test_a_cached_sequence_takes_what_vllm_says(tokens, workers, chunk):
    assert Cache(LARGE, workers).bytes(tokens, chunk) == ask_vllm(tokens, workers, chunk)


def test_the_longest_sequence_is_the_longest_with_which_vllm_starts():
    assert IN_FLIGHT == 2 * SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS
    cache = Cache(LARGE, 1)
    for room in (10**6, 5 * 10**7, 150 * 10**6, 10**9, 8 * 10**9):
        longest = cache.longest(room)
        assert longest == 0 or ask_vllm(longest, 1, IN_FLIGHT) <= room
        assert ask_vllm(longest + 1, 1, IN_FLIGHT) > room


def test_adapters_of_experts_keep_the_inputs_of_each_row():
    tokens, rows = 1000, 4 * 1000
    targets = FLAGS["target_modules"]
    parts, of_experts = (make_actor(target_modules=each).parts(1, tokens) for each in (targets, [*targets, "experts"]))
    name = "computation of a layer"
    assert of_experts[name] - parts[name] == 2 * rows * (2880 + 2880 + 2 * 16)


# `total_size` of each model.safetensors.index.json, and all parameters as OpenAI's model card counts them (Table 1).
PUBLISHED = {
    "openai/gpt-oss-120b": (65_248_815_744, 116.83e9),
    "openai/gpt-oss-20b": (13_761_264_768, 20.91e9),
}


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_are_the_published_ones(name):
    size, parameters = PUBLISHED[name]
    assert sum(RELEASED[name].actor_bytes(packed=True).values()) == size
    counted = sum(math.prod(shape) for shape in RELEASED[name].parameters().values())
    assert counted == pytest.approx(parameters, rel=1e-3)


def test_the_large_one_is_transformers_default():
    config = GptOssConfig()
    packed = config.to_dict() | {"quantization_config": {"quant_method": "mxfp4"}}
    assert Architecture.from_config(packed) == RELEASED["openai/gpt-oss-120b"]
    assert config.max_position_embeddings == CONTEXT
