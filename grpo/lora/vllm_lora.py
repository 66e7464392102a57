"""The LoRA adapter inside a vLLM worker, unmerged beside the frozen attention weights.

:mod:`grpo.lora.vllm_expert_lora` does the same for the experts.

``y = base(x) + (x A^T) B^T * scale``. It wraps the linear layer's ``quant_method``, which runs before the row-parallel
all-reduce: q, k and v take rows of B, o takes columns of A. Merging ``B A`` into bf16 weights would instead lose most
early updates to rounding.

A layer's update is two products, whose launches are most of its cost when tokens are sampled one by one: x with the
A of all projections, and the result with their B, which is added to the output of the frozen weight in place. PEFT
rounds this update to bf16 before it adds it, and we do not. Where the update is small, the sums are the same.

vLLM imports this module in every worker (``worker_extension_cls``) before it builds the model. The adapter thus
exists when the model is profiled and compiled.
"""

import functools
import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.models.gpt_oss import GptOssForCausalLM, MLPBlock, OAIAttention
from vllm.platforms import current_platform
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.worker.gpu_worker import Worker

from grpo.lora import router_capture, vllm_expert_lora
from grpo.lora.adapter import SHARED, SyncResult, TensorSpec, checksum, read_engine_config, row_sums, unflatten
from grpo.model import cpu_matmul, engine_base, shared_base
from grpo.model.vocabulary import Allocated, find_allocated, mask_
from grpo.stack import rendezvous
from grpo.stack.upstream import Attention, Experts, LinearLayer

LAYERS = "base_model.model.model.layers."  # the prefix of PEFT's names


class LoraLinearMethod(LinearMethodBase):
    """Adds the adapter to a linear layer; ``base`` is the layer's own method.

    Args:
        base: the method that applies the frozen weight.
        layer: the linear layer; gets buffers ``lora_A`` ``[parts * r, in]``, the parts' A one below the other, and
            ``lora_B`` ``[out, parts * r]``, the parts' B on the diagonal and zeros elsewhere. All are zero at first.
        sizes: the local output sizes of the parts that have their own adapter: (q, k, v), or that of o alone.
        in_features: the local input size.
        rank, scale: r, and alpha / r.
    """

    def __init__(
        self, base: LinearMethodBase, layer: LinearLayer, sizes: list[int], in_features: int, rank: int, scale: float
    ) -> None:
        self.base, self.scale = base, scale
        weight, hidden = next(layer.parameters()), len(sizes) * rank  # any of them, for dtype and device
        layer.register_buffer("lora_A", weight.new_zeros(hidden, in_features), persistent=False)
        layer.register_buffer("lora_B", weight.new_zeros(sum(sizes), hidden), persistent=False)

    def create_weights(self, *args: Any, **kwargs: Any) -> None:
        self.base.create_weights(*args, **kwargs)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self.base.process_weights_after_loading(layer)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the layer's output ``[T, out]`` for inputs ``[T, in]``."""
        hidden = x @ layer.lora_A.t()
        # The output is a new tensor, so it can be changed in place. A separate sum would cost another launch.
        return self.base.apply(layer, x, bias).addmm_(hidden, layer.lora_B.t(), alpha=self.scale)


def attach_if_trained(attention: Attention, config: VllmConfig) -> None:
    """Give the projections of an attention module their adapters if the engine is configured for them."""
    settings = read_engine_config(config)
    if not settings.get("lora_rank"):
        return
    qkv, o, of_adapter = attention.qkv_proj, attention.o_proj, (settings["lora_rank"], settings["lora_scale"])
    sizes = [attention.q_size, attention.kv_size, attention.kv_size]
    qkv.quant_method = LoraLinearMethod(qkv.quant_method, qkv, sizes, attention.hidden_size, *of_adapter)
    o.quant_method = LoraLinearMethod(o.quant_method, o, [attention.hidden_size], attention.q_size, *of_adapter)
    # vLLM keeps compiled models on disk, by this dictionary among others: none of another version of this code is used.
    settings["lora_code"] = code_digest()


def attach_to_experts(experts: Experts, config: VllmConfig) -> None:
    """Give a layer's experts their adapters if the engine is configured for them.

    Raises:
        UserError: if this build's experts cannot take an adapter.
    """
    settings = read_engine_config(config)
    if settings.get("expert_rank"):
        vllm_expert_lora.attach(experts, config, settings["expert_rank"], settings["lora_scale"])


@functools.cache
def code_digest() -> str:
    """Return a digest of the Python files in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


Slots = Mapping[str, tuple[torch.Tensor, tuple[slice, ...]]]  # buffers, and the parts of whole tensors that they hold


def slots(attention: Attention) -> Slots:
    """Map each adapter tensor of one attention module to its buffer on this worker.

    Returns:
        Keys are ``q_proj.lora_A`` and so on, in the order of the layers' ``lora_A`` and ``lora_B``.
    """
    rank, everything = get_tensor_model_parallel_rank(), slice(None)
    qkv, o = attention.qkv_proj, attention.o_proj
    parts = {"q": attention.q_size, "k": attention.kv_size, "v": attention.kv_size}
    held: dict[str, tuple[torch.Tensor, tuple[slice, ...]]] = {}
    for name, a in zip(parts, qkv.lora_A.chunk(len(parts)), strict=True):
        held[f"{name}_proj.lora_A"] = a, (everything,)
    for part, (name, b) in enumerate(zip(parts, qkv.lora_B.split(list(parts.values())), strict=True)):
        mine = slice(rank * parts[name], (rank + 1) * parts[name])
        held[f"{name}_proj.lora_B"] = b.chunk(len(parts), dim=1)[part], (mine,)
    mine = slice(rank * attention.q_size, (rank + 1) * attention.q_size)
    held["o_proj.lora_A"] = o.lora_A, (everything, mine)
    held["o_proj.lora_B"] = o.lora_B, (everything,)
    return held


Tensors = Mapping[str, tuple[int, torch.Tensor]]  # of a layer, with their numbers in the adapter


@dataclass
class Applied:
    """What a worker holds: the tensor count and the arguments of :func:`grpo.lora.adapter.checksum`."""

    tensors: int = 0
    sums: list[torch.Tensor] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)


def fill(attention: Attention, tensors: Tensors, applied: Applied) -> None:
    """Copy this worker's slices of one layer's attention adapter into its buffers, and add them to ``applied``.

    Args:
        tensors: ``q_proj.lora_A`` ``[r, in]``, ``q_proj.lora_B`` ``[out, r]`` and so on for k_proj, v_proj, o_proj.
            Each is whole (not split) and comes with its number in the adapter. A projection without one is absent
            and gets zeros.
    """
    # Summing the projections together takes half as long as one by one.
    # The zeros beside the B of q, k and v add nothing.
    qkv, o = attention.qkv_proj, attention.o_proj
    _copy(slots(attention), (qkv.lora_A, qkv.lora_B, o.lora_A, o.lora_B), tensors, applied)


def fill_experts(experts: Experts, tensors: Tensors, applied: Applied) -> None:
    """Do the same for the experts: ``experts.base_layer.lora_A`` and so on, with a dimension of experts before them."""
    held = vllm_expert_lora.slots(experts)
    _copy(held, [buffer for buffer, _ in held.values()], tensors, applied)


def _copy(held: Slots, buffers: Iterable[torch.Tensor], tensors: Tensors, applied: Applied) -> None:
    """Copy slices; ``buffers`` have the rows of ``held``, in their order."""
    for name, (buffer, part) in held.items():
        number = 0  # any, for zeros
        # In place: a compiled or captured engine has recorded the buffer's address.
        if name in tensors:
            number, whole = tensors[name]
            buffer.copy_(whole[part])
            applied.tensors += 1
        else:
            buffer.zero_()
        applied.rows.append((number, part[0].start or 0, len(buffer)))
    applied.sums += map(row_sums, buffers)  # now that they are in the CPU's cache


@functools.lru_cache(maxsize=1)
def map_file(path: str, inode: int) -> np.ndarray:
    """Return the file ``path`` as uint8 ``[bytes]``, mapped, so later writes to the file show too."""
    del inode  # part of the cache key: a new file may reuse the name
    return np.memmap(path, dtype=np.uint8, mode="r")


def group_by_layer(flat: torch.Tensor, specs: list[dict]) -> dict[str, dict[str, tuple[int, torch.Tensor]]]:
    """Return, for each layer, its tensors and their numbers in the adapter, by their names in attention or experts.

    ``flat`` is bf16 ``[elements]``, and ``specs`` has the fields of each ``TensorSpec``, by their offsets.
    """
    layers: dict[str, dict[str, tuple[int, torch.Tensor]]] = {}
    tensors = unflatten(flat, [TensorSpec(**fields) for fields in specs])
    for number, (name, tensor) in enumerate(tensors.items()):
        layer, _, slot = name.removeprefix(LAYERS).split(".", 2)
        layers.setdefault(layer, {})[slot.removesuffix(".weight")] = number, tensor
    return layers


class AdapterWorker(router_capture.RecordingWorker):
    """vLLM's ``worker_extension_cls``: methods that ``collective_rpc`` calls on every worker."""

    def load_adapter(self, path: str, specs: list[dict]) -> SyncResult:
        """Replace the adapter with the one in the file ``path``; see :func:`grpo.lora.sync.load_into_engine`.

        Raises:
            ValueError: if a tensor belongs to no layer of this model.
        """
        last = TensorSpec(**specs[-1])
        size = 2 * (last.offset + last.numel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that the mapping is read-only
            data = torch.from_numpy(map_file(path, os.stat(path).st_ino)[:size])
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        arrived, layers = group_by_layer(data.view(torch.bfloat16), specs), runner.model.model.layers
        self.forget_routing()  # the next policy chooses other experts, and the cache is reset
        applied = Applied()
        for number, layer in enumerate(layers):
            tensors = arrived.get(str(number), {})
            fill(layer.attn, tensors, applied)
            experts = vllm_expert_lora.find_weights(layer.mlp.experts)
            if hasattr(experts, "expert_rank"):
                fill_experts(experts, tensors, applied)
        if applied.tensors != len(specs):
            missing = len(specs) - applied.tensors
            raise ValueError(f"{missing} adapter tensors fit no layer; are they another model's?")
        return {
            "rank": get_tensor_model_parallel_rank(),
            "workers": get_tensor_model_parallel_world_size(),
            "checksum": int(checksum(applied.sums, tuple(applied.rows))) % 2**64,
            "tensors": applied.tensors,
            "memory": held_memory(runner.device),
        }

    def describe_base(self) -> shared_base.Description:
        """Describe the frozen base, so that the actor maps it. On a CPU it is that of a stand-in, which is made now."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if runner.device.type != "cpu":
            return shared_base.describe(engine_base.list_tensors(runner.model))
        from grpo.model import base_on_cpu

        return base_on_cpu.describe(runner.vllm_config.additional_config[SHARED])


def held_memory(device: torch.device) -> int:
    """Return the most bytes that PyTorch held on a GPU since the last call; on a CPU, those of this process now."""
    if device.type == "cpu":
        resident = Path("/proc/self/statm").read_text().split()[1]  # proc(5), in pages
        return int(resident) * os.sysconf("SC_PAGE_SIZE")
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def mask_vocabulary(model: GptOssForCausalLM, kept: Allocated) -> None:
    """Let a vLLM model sample only allocated tokens: the logits of all other rows become -inf.

    It runs once per pass for all requests, outside of what is compiled or captured. The engine's log-probs are
    normalized over the remaining rows, as in the trainer.
    """

    def mask_logits(_module: object, _inputs: object, logits: torch.Tensor | None) -> torch.Tensor | None:
        return None if logits is None else mask_(logits, kept)  # only one worker of an engine gets logits

    model.logits_processor.register_forward_hook(mask_logits)


def _install() -> None:
    """Patch the layers of every gpt-oss to create adapters, and every model to sample only allocated tokens."""
    original = OAIAttention.__init__

    def init_with_adapter(self: OAIAttention, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        attach_if_trained(cast(Attention, self), get_current_vllm_config())

    OAIAttention.__init__ = init_with_adapter  # type: ignore[method-assign]
    original_block = MLPBlock.__init__

    def init_block_with_adapter(self: MLPBlock, *args: Any, **kwargs: Any) -> None:
        original_block(self, *args, **kwargs)
        experts = vllm_expert_lora.find_weights(self.experts)
        engine_base.drop_scales_after_loading(experts)
        attach_to_experts(experts, get_current_vllm_config())

    MLPBlock.__init__ = init_block_with_adapter  # type: ignore[method-assign]
    original_model = GptOssForCausalLM.__init__

    def init_with_mask(self: GptOssForCausalLM, vllm_config: VllmConfig, prefix: str = "") -> None:
        if SHARED in read_engine_config(vllm_config) and torch.cuda.is_available():
            engine_base.keep_layout()
        original_model(self, vllm_config=vllm_config, prefix=prefix)
        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        if tokenizer is not None:  # None for grpo.model.base_on_cpu, which samples nothing
            mask_vocabulary(self, find_allocated(tokenizer))

    GptOssForCausalLM.__init__ = init_with_mask  # type: ignore[method-assign]
    original_pool = Worker._maybe_get_memory_pool_context

    def choose_pool(self: Worker, tag: str) -> AbstractContextManager[object]:
        """Keep a base that the actor maps out of sleep's pool: sleep would move it, and CUDA shares no such memory."""
        is_shared = tag == "weights" and SHARED in read_engine_config(self.vllm_config)
        return nullcontext() if is_shared else original_pool(self, tag)

    Worker._maybe_get_memory_pool_context = choose_pool  # type: ignore[method-assign]


_install()
router_capture.install()
if current_platform.is_cpu():
    engine_base.bound_caches()
cpu_matmul.install(torch.float64)  # on a CPU, a response is then the same in every batch
rendezvous.install()  # vLLM imports this module before its workers meet
