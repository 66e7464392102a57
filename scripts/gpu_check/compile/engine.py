"""Launches vLLM's Triton kernels for gpt-oss as an engine does, on tensors without data.

vLLM's own code chooses layouts, paddings and tiles. On Hopper, engines take FlashAttention 3 where they can, and
TRITON_ATTN is what they fall back to. On Blackwell, experts are Triton's unless FlashInfer can be used.
"""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GptOssConfig

from scripts.gpu_check.compile.report import Card
from scripts.gpu_check.rung import Skipped

TOKENS = (1, 64, 2048, 8192)  # of a pass
SEQUENCES = (4, 256)  # few are decoded in segments, which a second kernel sums
_BLOCK = 16  # tokens in a block of the cache
_EXPERT_RANK = 16


def simulate_card(card: Card) -> None:
    """Let vLLM take the card for this machine's. It can load its compiled operators nowhere but beside a driver."""
    import vllm.platforms
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class Described(Platform):
        _enum = PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*card.capability)

    vllm.platforms._current_platform = Described()  # type: ignore[assignment]
    from vllm import _custom_ops

    for name in (
        "cutlass_scaled_mm_supports_fp8",
        "cutlass_scaled_mm_supports_block_fp8",
        "cutlass_group_gemm_supported",
    ):
        setattr(_custom_ops, name, lambda _: False)  # asked by an import


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
    for window in (config.sliding_window, None):
        layer = TritonAttentionImpl(heads, size, size**-0.5, groups, None, window, "auto", sinks=_empty(heads))
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
            )
            query, key, value = (_empty(tokens, number, size) for number in (heads, groups, groups))
            cache = _empty(1024, 2, _BLOCK, groups, size)
            layer.forward(scale, query, key, value, cache, metadata, output=torch.empty_like(query))


def experts(config: GptOssConfig, workers: int) -> None:
    """Compile routing and both products of a layer with MXFP4 experts, without an adapter and with one.

    Raises:
        Skipped: if this vLLM has no such kernels.
    """
    if find_spec("vllm.third_party.triton_kernels") is None:
        raise Skipped("vLLM's build for CPUs has no triton_kernels")
    from vllm.model_executor.layers.fused_moe.gpt_oss_triton_kernels_moe import triton_kernel_moe_forward
    from vllm.model_executor.layers.quantization import mxfp4

    from grpo.lora import expert_side_path

    mxfp4.has_flashinfer = lambda: False  # type: ignore[assignment]
    run: Any = SimpleNamespace(compilation_config=SimpleNamespace(max_cudagraph_capture_size=None))
    mxfp4.get_current_vllm_config = lambda: run
    kind: Any = SimpleNamespace(is_lora_enabled=False, use_pplx_kernels=False, use_deepep_ll_kernels=False)
    method = mxfp4.Mxfp4MoEMethod(kind)
    assert method.mxfp4_backend == mxfp4.Mxfp4Backend.TRITON, method.mxfp4_backend
    with torch.device("meta"):
        layer: Any = torch.nn.Module()
        inner = config.intermediate_size // workers
        method.create_weights(layer, config.num_local_experts, config.hidden_size, inner, torch.bfloat16)
        layer.quant_method, layer.hidden_size, layer.top_k = method, config.hidden_size, config.num_experts_per_tok
        layer.moe_config = SimpleNamespace(tp_rank=0, tp_size=workers)
        serial = SimpleNamespace(enable_expert_parallel=False, data_parallel_size=1)
        engine: Any = SimpleNamespace(parallel_config=serial, model_config=SimpleNamespace(hf_config=config))
        expert_side_path.attach(layer, engine, rank=_EXPERT_RANK, scale=2.0)
        method.process_weights_after_loading(layer)
        for tokens in TOKENS:
            states, logits = _empty(tokens, config.hidden_size), _empty(tokens, config.num_local_experts)
            triton_kernel_moe_forward(
                states,
                layer.w13_weight,
                layer.w2_weight,
                logits,
                config.num_experts_per_tok,
                renormalize=True,
                global_num_experts=config.num_local_experts,
                quant_config=method.get_fused_moe_quant_config(layer),
            )
            method.apply_monolithic(layer, states, logits)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
