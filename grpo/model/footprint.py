"""The memory of the actor on its GPU, by part, and some of an engine's, from a model's shapes. Works without torch.

Resident parts follow from shapes alone. What a pass needs is linear in its tokens. Two counts of it, named below, were
read off measurements on an H100; docs/boxes.md compares the formula with those.
"""

import math
from argparse import Namespace
from dataclasses import dataclass

from grpo.model.architecture import OF_ENGINE, PACKED, ZERO3, Architecture

# What actor and engines bound their memory by.
UNPACKED_BYTES = 1 << 30  # of unpacked expert weights at a time
REDUCE_BUCKET = 1 << 26  # elements of gradients that ranks reduce at a time: an adapter of rank 64 of the 120b fits
SCORED_TOKENS = 256  # whose logits exist at a time
DECODED_SEQUENCES = 128  # of an engine at a time: vLLM's default for OpenRLHF's engines

_BF16 = 2
_MXFP4 = 17 / 32  # bytes of a weight: half of one, and a 32nd of its group's scale
# Measured: hidden states that a layer's backward pass holds per token, besides what the experts' rows need,
LAYER_STATES = 8.5
# and hidden states outside of the layers: embeddings, the last norm, and their gradients.
OUTER_STATES = 3
_OPTIMIZER = 12  # bytes of an adapter's parameter: fp32 weight and two moments
_GRADIENT = 4
_EAGER_SCORES = 4  # copies of the scores that transformers' attention holds
WINDOW = 128  # tokens that a sliding layer of gpt-oss sees
_BLOCK = 16  # tokens of a block of vLLM's cache
_RANKS = 8  # an engine pads the ranks of experts' adapters to a multiple: grpo.lora.vllm_expert_lora
# Tokens that vLLM 0.29 computes at once: two batches of `max_num_batched_tokens`, which engines leave at its default.
# vLLM 0.15 has one batch, so that the plan's cache is up to 75 MB too large there.
IN_FLIGHT = 2 * 2_048


@dataclass(frozen=True)
class Actor:
    """A rank of the actor; `args` has the flags that say how it holds the base, the adapter, and the optimizer."""

    architecture: Architecture
    args: Namespace
    ranks: int

    def held_parts(self) -> dict[str, int]:
        """Return the bytes of each part that stays between passes, by its name."""
        args, base = self.args, self._base_bytes()
        is_sharded, lora = args.actor_shard == ZERO3, self.architecture.count_lora_parameters(args)
        share = math.ceil(lora / self.ranks)
        whole = 0 if is_sharded else lora  # and a share of it, for the optimizer
        parts = {}
        if args.actor_shard == OF_ENGINE and not args.offload:
            biases = (size for name, size in base.items() if ".experts." in name and name.endswith("_bias"))
            parts["experts' biases"] = sum(biases)
        elif not args.offload:
            kind = "packed" if self._unpacks else "bf16"
            parts[f"frozen base, {kind}"] = math.ceil(sum(base.values()) / (self.ranks if is_sharded else 1))
        parts |= {"adapter": _BF16 * (share + whole), "gradients": _BF16 * REDUCE_BUCKET}
        if args.adapter and args.init_kl_coef > 0:
            parts["adapter of the start, frozen"] = _BF16 * (share if is_sharded else whole)
        if not args.adam_offload:
            parts["gradients"] += _GRADIENT * share
            parts["optimizer"] = _OPTIMIZER * share
        return parts

    def parts(self, rows: int, length: int) -> dict[str, int]:
        """Return the bytes of each part by its name, at a micro-batch of ``rows`` sequences of ``length`` tokens."""
        args, shape, tokens = self.args, self.architecture, rows * length
        is_sharded, states = args.actor_shard == ZERO3, tokens * shape.hidden * _BF16
        parts = self.held_parts()
        if args.offload or (is_sharded and self.ranks > 1):
            parts["gathered layer, and the largest tensor of the next"] = self._gathered_bytes(is_sharded)
        layer = self._layer(tokens)
        if args.attn_implementation == "eager":
            layer += _EAGER_SCORES * rows * shape.heads * length**2 * _BF16
        if args.gradient_checkpointing:
            parts["states between layers"] = (shape.layers + OUTER_STATES) * states
            parts["computation of a layer"] = layer
        else:
            parts["states between layers"] = OUTER_STATES * states
            parts["computation of all layers"] = layer * shape.layers
        if self._unpacks:  # a part is in use while the next is unpacked
            whole = shape.experts * shape.hidden * 2 * shape.intermediate * _BF16
            parts["unpacked experts"] = min(whole, 2 * UNPACKED_BYTES)
        # a chunk's logits and their gradient
        parts["log-probs, in chunks"] = min(tokens, SCORED_TOKENS) * shape.vocabulary * 2 * _BF16
        return {name: size for name, size in parts.items() if size}

    @property
    def _unpacks(self) -> bool:
        return self.args.experts == PACKED and self.architecture.mxfp4

    def _base_bytes(self) -> dict[str, int]:
        return self.architecture.actor_bytes(self.args.experts == PACKED)

    def _gathered_bytes(self, is_sharded: bool) -> int:
        base = self._base_bytes()
        layer = [size for name, size in base.items() if name.startswith("model.layers.0.")]
        lora = self.architecture.count_lora_parameters(self.args) if is_sharded else 0
        return max(sum(layer) + _BF16 * lora // self.architecture.layers, base["lm_head.weight"]) + max(layer)

    def _layer(self, tokens: int) -> int:
        """Return the bytes of a layer's backward pass. Each token has a row per chosen expert."""
        shape, rank = self.architecture, self.architecture.find_expert_rank(self.args)
        # A product's result is put together from its parts; or outputs, their gradients, and the saved gate_up.
        of_row = max(shape.hidden + 4 * shape.intermediate, 3 * shape.hidden + 2 * shape.intermediate)
        if rank:  # the gradients of an adapter need its inputs
            of_row += shape.hidden + shape.intermediate + 2 * rank
        return int(tokens * _BF16 * (shape.experts_per_token * of_row + LAYER_STATES * shape.hidden))


def count_side_path(shape: Architecture, args: Namespace, workers: int) -> int:
    """Return the bytes of the adapter in one of an engine's workers, whose buffers are for all of attention.

    Those of experts are for all of them too, if they have adapters. Workers cut the inner width.
    """
    hidden, queries = shape.projection("o_proj")
    of_qkv = sum(shape.projection(name)[0] for name in ("q_proj", "k_proj", "v_proj")) // workers
    widths = 3 * (hidden + of_qkv) + queries // workers + hidden  # B of q, k and v is one matrix with three blocks
    rank = _RANKS * math.ceil(shape.find_expert_rank(args) / _RANKS)
    of_experts = shape.experts * rank * (2 * hidden + 3 * shape.intermediate // workers)
    return _BF16 * shape.layers * (args.lora_rank * widths + of_experts)


def count_padding(shape: Architecture, workers: int) -> int:
    """Return the bytes by which Marlin's kernels pad the experts of one of an engine's workers."""
    hidden, inner = shape.hidden, shape.intermediate // workers
    padded = math.ceil(hidden / 256) * 256 * math.ceil(inner / 128) * 128
    return int(shape.layers * shape.experts * 3 * (padded - hidden * inner) * _MXFP4)


@dataclass(frozen=True)
class Cache:
    """The key/value cache of a GPU of an engine.

    vLLM gives blocks of 16 tokens from one pool: to all full layers of a sequence, and to all sliding ones, which are
    every second layer and keep a window.
    """

    architecture: Architecture
    workers: int  # GPUs of the engine

    def bytes(self, tokens: int, chunk: int = 1) -> int:
        """Return the bytes of a sequence, ``chunk`` tokens of which are computed at once."""
        sliding = min(tokens, WINDOW - 1 + chunk)
        return self._block * (math.ceil(tokens / _BLOCK) + math.ceil(sliding / _BLOCK) + 1)

    def longest(self, room: int) -> int:
        """Return the tokens of the longest sequence with which vLLM starts, given bytes; 0 if there is none."""
        blocks = room // self._block - 1
        kept = math.ceil((WINDOW - 1 + IN_FLIGHT) / _BLOCK)
        return max(0, _BLOCK * max(blocks - kept, min(blocks // 2, kept)))

    @property
    def _block(self) -> int:
        shape = self.architecture
        of_layer = 2 * _BLOCK * shape.key_value_heads * shape.head_dim * _BF16
        return max(1, math.ceil(shape.layers / 2) * of_layer // self.workers)
