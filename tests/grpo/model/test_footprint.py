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
