"""What a vLLM engine holds: its frozen base, by the actor's names, and its cache. Runs in vLLM's worker.

vLLM copies a checkpoint's tensors into its parameters. Most lie there as the actor computes them. But q, k and v
are rows of one weight, the vocabulary is padded, and Triton's kernels take the experts' biases in fp32, which the actor
rounds back: 0.1% of the base, which exists twice.
"""

import mmap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from grpo.model.architecture import NO_SHARD
from grpo.model.mxfp4 import GROUP
from grpo.model.shared_base import BaseError
from grpo.stack.machine import SHARES_MODEL
from grpo.stack.problem import UserError

_EXPERTS = {"gate_up_proj": "w13", "down_proj": "w2"}


def list_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the base of vLLM's ``GptOssForCausalLM`` by the names of the actor's packed model.

    All are views of the engine's memory.

    Raises:
        BaseError: if the engine has a part of the model, or another layout of its experts.
    """
    rows = model.config.vocab_size
    inner = model.model
    tensors = {
        "model.embed_tokens.weight": inner.embedding.weight[:rows],
        "model.norm.weight": inner.norm.weight,
        "lm_head.weight": model.lm_head.weight[:rows],
    }
    for number, layer in enumerate(inner.layers):
        tensors |= {f"model.layers.{number}.{name}": tensor for name, tensor in _list_layer(layer)}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def keep_layout() -> None:
    """Let vLLM's Triton kernels read the experts as the files hold them. They are rearranged for Hopper by default.

    Raises:
        UserError: if vLLM has no such kernels for this GPU. The launcher does not see those of other nodes.
    """
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import import_triton_kernels

    found = current_platform.get_device_capability()
    if found is None or found.as_version_str() != SHARES_MODEL:
        what = f"the engine's GPU has compute capability {found and found.as_version_str()}"
        raise UserError(f"{what}, and --actor_shard engine needs {SHARES_MODEL}", f"set --actor_shard {NO_SHARD}")
    import_triton_kernels()  # makes vLLM's bundled copy importable; its build for CPUs has none
    from triton_kernels.tensor_details import layout

    for name in ("make_default_matmul_mxfp4_w_layout", "make_default_matmul_mxfp4_w_scale_layout"):
        setattr(layout, name, lambda **_: (layout.StridedLayout, {}))


def drop_scales_after_loading(experts: Any) -> None:
    """Let vLLM 0.15 drop the scales of a layer's experts as it loads them, once it has rearranged them.

    It would keep both: 3.6 GB for gpt-oss-120b.
    """
    method = experts.quant_method
    process = method.process_weights_after_loading

    def process_and_drop(layer: Any) -> None:
        process(layer)
        if getattr(method, "w13_precision_config", None) is not None:  # what Triton's kernels read
            for mine in _EXPERTS.values():
                setattr(layer, f"{mine}_weight_scale", None)

    method.process_weights_after_loading = process_and_drop


def _list_layer(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{norm}.weight", getattr(layer, norm).weight
    attention, router = layer.attn, layer.mlp.router
    yield "self_attn.sinks", attention.sinks
    sizes = [attention.q_size, attention.kv_size, attention.kv_size]
    for kind in ("weight", "bias"):
        parts = getattr(attention.qkv_proj, kind).split(sizes)
        for name, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
            yield f"self_attn.{name}.{kind}", part
        yield f"self_attn.o_proj.{kind}", getattr(attention.o_proj, kind)
        yield f"mlp.router.{kind}", getattr(router, kind)
    for name, tensor in list_experts(layer.mlp.experts):
        yield f"mlp.experts.{name}", tensor


def list_experts(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a layer's experts by their names in the files, and in the files' shapes."""
    experts = getattr(layer, "routed_experts", layer)  # vLLM 0.29 has a module for the weights
    for name, mine in _EXPERTS.items():
        blocks = _untransposed(getattr(experts, f"{mine}_weight")).unflatten(-1, (-1, GROUP // 2))
        precision = getattr(experts.quant_method, f"{mine}_precision_config", None)
        scales = _untransposed(precision.weight_scale if precision else getattr(experts, f"{mine}_weight_scale"))
        yield f"{name}_blocks", blocks
        yield f"{name}_scales", scales[..., : blocks.shape[-2]]  # vLLM 0.29 pads them
        yield f"{name}_bias", getattr(experts, f"{mine}_bias")


def _untransposed(weight: Any) -> torch.Tensor:
    """Return packed weights or scales as in the files, ``[E, out, ...]``, which Triton's kernels hold transposed."""
    if isinstance(weight, torch.Tensor):
        return weight
    if weight.storage.layout.name is not None:
        raise BaseError(f"the engine has arranged its experts anew ({weight.storage.layout.name})")
    data: torch.Tensor = weight.storage.data
    return data.mT


def bound_caches() -> None:
    """Let an engine's key/value cache on a CPU take memory as it fills, and no more than its sequences can use.

    vLLM would write zeros into all of it, and use every block before it uses one again. The cache gets twice what all
    sequences need at their greatest length; the other half keeps prefixes for later calls.
    """
    from vllm.v1.worker.cpu_worker import CPUWorker

    available, initialize = CPUWorker.determine_available_memory, CPUWorker.initialize_from_config
    make_zeros = torch.zeros

    def choose_size(self: CPUWorker) -> int:
        specs = self.model_runner.get_kv_cache_spec().values()
        sequence = sum(spec.max_memory_usage_bytes(self.vllm_config) for spec in specs)
        return min(available(self), 2 * self.scheduler_config.max_num_seqs * sequence)

    def map_cache(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("dtype") != torch.int8:  # not the cache, which vLLM allocates as bytes
            return make_zeros(*args, **kwargs)
        # Zeros that take memory only once they are used
        return torch.frombuffer(mmap.mmap(-1, args[0], flags=mmap.MAP_PRIVATE), dtype=torch.int8)

    CPUWorker.determine_available_memory = choose_size  # type: ignore[method-assign]
    CPUWorker.initialize_from_config = mock.patch.object(torch, "zeros", map_cache)(initialize)  # type: ignore[method-assign]
