"""What the workers of the rungs' engines do besides those of a run. vLLM imports this before it builds the model.

vLLM's own dummy weights leave MXFP4 experts at zero, and give all tokens the same four experts: a pass would read few
weights, and compute with zeros. Here they are random values of a sensible scale.
"""

from functools import partial
from typing import Any

import torch
from vllm.model_executor.model_loader import dummy_loader

from benchmarks.random_model import fill_
from grpo.lora.vllm_lora import AdapterWorker, held_memory, slots


def fill_model(model: torch.nn.Module) -> None:
    """Fill a model's weights in the layout of its checkpoint, before vLLM rearranges them for its kernels."""
    torch.manual_seed(0)
    for name, values in model.state_dict().items():
        # Scalars are scales of a quantized cache.
        if values.dim() and (values.is_floating_point() or values.dtype == torch.uint8):
            fill_(name, values, values.shape[-1])


def _load_weights(loader: object, model: torch.nn.Module, model_config: object) -> None:
    del loader, model_config
    fill_model(model)


dummy_loader.DummyModelLoader.load_weights = _load_weights  # type: ignore[assignment]


class SpeedWorker(AdapterWorker):
    """vLLM's ``worker_extension_cls``; ``collective_rpc`` calls its methods."""

    def watch_routers(self, rows: int) -> None:
        """Note from now on which experts passes of so many rows choose. Graphs do not call what notes it."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        self._distinct: dict[int, int] = {}  # experts by layer
        self._watches: list[Any] = []

        def count(number: int, chosen: int, _router: Any, _inputs: Any, logits: torch.Tensor) -> None:
            if len(logits) == rows:
                self._distinct[number] = len(logits.topk(chosen).indices.unique())

        for number, layer in enumerate(runner.model.model.layers):
            mlp = layer.mlp
            self._watches.append(mlp.router.register_forward_hook(partial(count, number, mlp.experts_per_token)))

    def distinct_experts(self) -> list[int]:
        """Return how many experts the tokens of the last pass chose in each layer, and watch no longer."""
        for watch in self._watches:
            watch.remove()
        return list(self._distinct.values())

    def describe(self) -> dict[str, float]:
        """Return the tokens that the key/value cache holds, and the GB in use on the GPU, or by this process."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        cache = runner.kv_cache_config
        block = min(group.kv_cache_spec.block_size for group in cache.kv_cache_groups)
        if runner.device.type == "cpu":
            used = held_memory(runner.device)
        else:
            free, total = torch.cuda.mem_get_info(runner.device)
            used = total - free
        return {"cache_tokens": cache.num_blocks // len(cache.kv_cache_groups) * block, "memory_gb": used / 1e9}


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
