"""What the workers of the checks' engines do besides those of a run. vLLM imports this before it builds the model.

vLLM's own dummy weights leave MXFP4 experts at zero, and give all tokens the same four experts: a pass would read few
weights, and compute with zeros. Here they are random values of a sensible scale.
"""

from typing import Any

import torch
from vllm.model_executor.model_loader import dummy_loader

from benchmarks.random_model import fill_
from grpo.lora.vllm_expert_lora import find_weights
from grpo.lora.vllm_lora import AdapterWorker, held_memory, slots


def _load_weights(loader: object, model: torch.nn.Module, model_config: object) -> None:
    """Fill a model's weights in the layout of its checkpoint, before vLLM rearranges them for its kernels."""
    torch.manual_seed(0)
    for name, values in model.state_dict().items():
        # Scalars are scales of a quantized cache.
        if values.dim() and (values.is_floating_point() or values.dtype == torch.uint8):
            fill_(name, values, values.shape[-1])


dummy_loader.DummyModelLoader.load_weights = _load_weights  # type: ignore[assignment]


class SpeedWorker(AdapterWorker):
    """vLLM's ``worker_extension_cls``; ``collective_rpc`` calls its methods."""

    def describe(self) -> dict[str, Any]:
        """Return the cache's tokens, the GB in use on the GPU, or by this process, and what computes the experts."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        cache = runner.kv_cache_config
        block = min(group.kv_cache_spec.block_size for group in cache.kv_cache_groups)
        if runner.device.type == "cpu":
            used = held_memory(runner.device)
        else:
            free, total = torch.cuda.mem_get_info(runner.device)
            used = total - free
        method = find_weights(runner.model.model.layers[0].mlp.experts).quant_method
        backend = getattr(method, "mxfp4_backend", None)
        return {
            "cache_tokens": cache.num_blocks // len(cache.kv_cache_groups) * block,
            "memory_gb": used / 1e9,
            "experts": type(method).__name__ if backend is None else backend.name,
        }


class OneByOneWorker(AdapterWorker):
    """The stock way of the benchmark `sync`: the call that OpenRLHF makes for each parameter."""

    def update_weight(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], empty_cache: bool = False) -> None:
        """Take a tensor from a memory file, in place of a broadcast over NCCL; name: file, line feed, tensor."""
        path, _, tensor_name = name.partition("\n")
        whole = torch.from_file(path, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
        number, slot = tensor_name.partition("layers.")[2].removesuffix(".weight").split(".self_attn.")
        layer = self.model_runner.model.model.layers[int(number)]  # type: ignore[attr-defined]
        buffer, part = slots(layer.attn)[slot]
        buffer.copy_(whole[part])
