"""A vLLM worker that takes one adapter tensor at a time: the stock way of the benchmark `sync`."""

import torch

from grpo.lora import expert_side_path
from grpo.lora.side_path import AdapterWorker, slots


class OneByOneWorker(AdapterWorker):
    """vLLM's ``worker_extension_cls`` with the call that OpenRLHF makes for each parameter."""

    def update_weight(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], empty_cache: bool = False) -> None:
        """Take one tensor from a memory file, which stands in for OpenRLHF's broadcast over NCCL.

        Args:
            name: the file and the tensor's name, separated by a line feed.
        """
        path, _, tensor_name = name.partition("\n")
        whole = torch.from_file(path, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
        number, kind, slot = tensor_name.partition("layers.")[2].removesuffix(".weight").split(".", 2)
        layer = self.model_runner.model.model.layers[int(number)]  # type: ignore[attr-defined]
        experts = expert_side_path.find_weights(layer.mlp.experts)
        held = slots(layer.attn) if kind == "self_attn" else expert_side_path.slots(experts)
        buffer, part = held[slot]
        buffer.copy_(whole[part])
