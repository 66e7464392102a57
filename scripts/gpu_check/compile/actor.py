"""Launches the actor's Triton kernels as a training step does, on tensors without data."""

import torch
from transformers import GptOssConfig

from grpo.model import mxfp4, mxfp4_triton
from grpo.model.attention_triton import SinkAttention
from grpo.model.experts import Experts

# Tokens of a micro-batch, and its rows: Triton specializes for multiples of 16.
SIZES = ((300, 2), (4096, 1))


def attention(config: GptOssConfig) -> None:
    """Compile attention with sinks, sliding and full, forward and backward."""
    for length, batch in SIZES:
        for window in (config.sliding_window, None):
            # As transformers passes them: [B, L, H, D], transposed.
            query, key, value = (
                _bf16(batch, length, heads, config.head_dim).transpose(1, 2).requires_grad_()
                for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
            )
            sinks = _bf16(config.num_attention_heads).requires_grad_()
            tokens = torch.empty(batch, length, dtype=torch.bool, device="meta")
            out = SinkAttention.apply(query, key, value, sinks, tokens, window, config.head_dim**-0.5)
            out.backward(torch.empty_like(out))


def experts(config: GptOssConfig) -> None:
    """Compile the unpacking of MXFP4 weights, in the parts in which forward and backward pass need them."""
    # A tensor without data is not on a GPU, so `unpack_weights` would not choose the kernel.
    mxfp4.unpack_weights = _unpack
    with torch.device("meta"):
        layer = Experts(config, packed=True).bfloat16()
        for length, batch in SIZES:
            states = _bf16(batch, length, config.hidden_size).requires_grad_()
            choices = torch.empty(batch * length, config.num_experts_per_tok, dtype=torch.int64)
            out = layer(states, choices, _bf16(batch * length, config.num_local_experts))
            out.backward(torch.empty_like(out))


def _unpack(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return mxfp4_triton.unpack(blocks, scales).transpose(-1, -2)


def _bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")
