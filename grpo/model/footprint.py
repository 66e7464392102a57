"""The memory of the actor on its GPU, by part, and some of an engine's, from a model's shapes. Works without torch.

Resident parts follow from shapes alone. What a pass needs is linear in its tokens. Two counts of it, named below, were
read off measurements on an H100; docs/boxes.md compares the formula with those.
"""

import math
from dataclasses import dataclass

from grpo.model.architecture import Architecture
from grpo.model.sizes import REDUCE_BUCKET, SCORED_TOKENS, UNPACKED_BYTES

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
    """How a rank of the actor holds a model and its adapter.

    Attributes:
        lora_parameters: of the whole adapter.
        sharded: whether ZeRO-3 partitions the frozen base over the ranks.
        maps: whether the rank maps the base of an engine, and so holds none. Only the experts' biases are its own.
        offload: whether its partitions stay in host memory.
        adam_offload: whether the optimizer does.
        checkpointing: whether the backward pass computes layers again.
        eager: whether transformers' own attention is used.
        expert_rank: of the adapters of experts; 0 if they have none.
        reference: whether it also holds the adapter that the run started from, frozen.
    """

    architecture: Architecture
    lora_parameters: int
    ranks: int
    packed: bool
    sharded: bool
    offload: bool
    adam_offload: bool
    checkpointing: bool
    eager: bool
    expert_rank: int = 0
    reference: bool = False
    maps: bool = False

    def parts(self, rows: int, length: int) -> dict[str, int]:
        """Return the bytes of each part by its name, at a micro-batch of ``rows`` sequences of ``length`` tokens."""
        tokens = rows * length
        parts = self.held_parts()
        if self._shares > 1 or self.offload:
            parts["gathered layer, and the largest tensor of the next"] = self._gathered_bytes(self._base_bytes())
        layer = self._layer(tokens) + (self._eager_scores(rows, length) if self.eager else 0)
        states = tokens * self.architecture.hidden * _BF16
        if self.checkpointing:
            parts["states between layers"] = (self.architecture.layers + OUTER_STATES) * states
        else:
            parts["states between layers"] = OUTER_STATES * states
            layer *= self.architecture.layers
        parts["computation of a layer" if self.checkpointing else "computation of all layers"] = layer
        parts["unpacked experts"] = self._unpacked_bytes() if self._kind == "packed" else 0
        parts["log-probs, in chunks"] = self._scores(tokens)
        return {name: size for name, size in parts.items() if size}

    def held_parts(self) -> dict[str, int]:
        """Return the bytes of each part that stays between passes, by its name."""
        if self.offload:
            return self._resident()
        base = self._base_bytes()
        if self.maps:
            biases = sum(size for name, size in base.items() if ".experts." in name and name.endswith("_bias"))
            return {"experts' biases": biases} | self._resident()
        return {f"frozen base, {self._kind}": math.ceil(sum(base.values()) / self._shares)} | self._resident()

    @property
    def _kind(self) -> str:
        return "packed" if self.packed and self.architecture.mxfp4 else "bf16"

    @property
    def _shares(self) -> int:
        return self.ranks if self.sharded else 1

    def _resident(self) -> dict[str, int]:
        share = math.ceil(self.lora_parameters / self.ranks)
        whole = 0 if self.sharded else self.lora_parameters  # and a share of it, for the optimizer
        parts = {"adapter": _BF16 * (share + whole), "gradients": _BF16 * REDUCE_BUCKET}
        if self.reference:
            parts["adapter of the start, frozen"] = _BF16 * (share if self.sharded else whole)
        if not self.adam_offload:
            parts["gradients"] += _GRADIENT * share
            parts["optimizer"] = _OPTIMIZER * share
        return parts

    def _base_bytes(self) -> dict[str, int]:
        return self.architecture.actor_bytes(self.packed)

    def _gathered_bytes(self, of_base: dict[str, int]) -> int:
        layer = {name: size for name, size in of_base.items() if name.startswith("model.layers.0.")}
        adapter = _BF16 * self.lora_parameters // self.architecture.layers if self.sharded else 0
        head = of_base["lm_head.weight"]
        return max(sum(layer.values()) + adapter, head) + max(layer.values())

    def _unpacked_bytes(self) -> int:
        """Return the bytes of unpacked weights: a part is in use while the next is unpacked."""
        shape = self.architecture
        whole = shape.experts * shape.hidden * 2 * shape.intermediate * _BF16
        return min(whole, 2 * UNPACKED_BYTES)

    def _layer(self, tokens: int) -> int:
        """Return the bytes of a layer's backward pass. Each token has a row per chosen expert."""
        shape = self.architecture
        # A product's result is put together from its parts; or outputs, their gradients, and the saved gate_up.
        of_row = max(shape.hidden + 4 * shape.intermediate, 3 * shape.hidden + 2 * shape.intermediate)
        if self.expert_rank:  # the gradients of an adapter need its inputs
            of_row += shape.hidden + shape.intermediate + 2 * self.expert_rank
        return int(tokens * _BF16 * (shape.experts_per_token * of_row + LAYER_STATES * shape.hidden))

    def _eager_scores(self, rows: int, length: int) -> int:
        return _EAGER_SCORES * rows * self.architecture.heads * length**2 * _BF16

    def _scores(self, tokens: int) -> int:
        """Return the bytes of a chunk's logits and of their gradient."""
        return min(tokens, SCORED_TOKENS) * self.architecture.vocabulary * 2 * _BF16


def count_expert_adapter(architecture: Architecture, rank: int, workers: int) -> int:
    """Return the bytes of a layer's adapters of experts in one of an engine's workers, which cut the inner width."""
    widths = 2 * architecture.hidden + 3 * architecture.intermediate // workers
    return _BF16 * architecture.experts * _RANKS * math.ceil(rank / _RANKS) * widths


def count_padding(architecture: Architecture, workers: int) -> int:
    """Return the bytes by which Marlin's kernels pad the experts of one of an engine's workers."""
    hidden, inner = architecture.hidden, architecture.intermediate // workers
    padded = math.ceil(hidden / 256) * 256 * math.ceil(inner / 128) * 128
    return int(architecture.layers * architecture.experts * 3 * (padded - hidden * inner) * _MXFP4)


@dataclass(frozen=True)
class Cache:
    """The key/value cache of a GPU of an engine.

    vLLM gives blocks of 16 tokens from one pool: to all full layers of a sequence, and to all sliding ones, which are
    every second layer and keep a window.

    Attributes:
        workers: GPUs of the engine.
    """

    architecture: Architecture
    workers: int

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
