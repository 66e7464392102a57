"""The rung about the adapter in an engine: vLLM's side path against PEFT, whole and in two tensor-parallel halves."""

from typing import Any

import torch

from benchmarks.kernels import Pairs, judge
from benchmarks.rung import Passed, choose_device


class Frozen:
    """Stands in for vLLM's method of a linear layer: a plain product."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


@torch.no_grad()
def check(gpus: int, hidden: int = 2880, rank: int = 64, tokens: int = 64, scale: int = 2) -> Passed:
    """Compare gpt-oss-120b's two layers: that of q, k and v, cut by output, and o, whose parts are added."""
    device, pairs = choose_device(gpus), Pairs()
    layers = {"qkv": (hidden, {"q_proj": 4096, "k_proj": 512, "v_proj": 512}), "o": (4096, {"o_proj": hidden})}
    torch.manual_seed(0)
    for name, (inputs, outputs) in layers.items():
        peft = list(make_layers(inputs, outputs, rank, scale).to(device, torch.bfloat16).values())
        x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
        exact = []
        for weight, a, b in ((matrix.double().cpu() for matrix in _matrices(each)) for each in peft):
            exact.append(x.double().cpu() @ (weight + scale * b @ a).T)
        pairs[f"{name} in PEFT"] = torch.cat([each(x) for each in peft], -1), torch.cat(exact, -1)
        for parts in (1, 2):
            results = [worker_output(peft, x, part, parts, scale) for part in range(parts)]
            pair = torch.stack(results).sum(0), exact[0]
            if name == "qkv":  # each worker has its part of q, k and v
                halves = [each.chunk(parts, -1)[part] for part in range(parts) for each in exact]
                pair = torch.cat(results, -1), torch.cat(halves, -1)
            pairs[f"{name} in {parts} part{'s' * (parts > 1)}"] = pair
    return judge("side path, and PEFT", pairs)


def make_layers(inputs: int, outputs: dict[str, int], rank: int, scale: int) -> torch.nn.ModuleDict:
    """Return PEFT's layers of these sizes, with random weights and adapters."""
    from peft import LoraConfig, get_peft_model

    base: Any = torch.nn.ModuleDict({name: torch.nn.Linear(inputs, size, bias=False) for name, size in outputs.items()})
    lora = LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=list(outputs))
    model: Any = get_peft_model(base, lora, autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model.base_model.model


def _matrices(projection: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return projection.base_layer.weight, projection.lora_A["default"].weight, projection.lora_B["default"].weight


def worker_output(projections: list[Any], x: torch.Tensor, part: int, parts: int, scale: int) -> torch.Tensor:
    """Return what one of this many workers of an engine computes."""
    from grpo.lora.side_path import SidePath

    weights, below, above = map(list, zip(*map(_matrices, projections), strict=True))
    if len(projections) > 1:
        weights, above = ([matrix.chunk(parts)[part] for matrix in each] for each in (weights, above))
    else:
        weights, below = ([matrix.chunk(parts, 1)[part] for matrix in each] for each in (weights, below))
        x = x.chunk(parts, -1)[part]
    layer: Any = torch.nn.Module()
    base: Any = Frozen()
    layer.register_parameter("weight", torch.nn.Parameter(torch.cat(weights), requires_grad=False))
    path = SidePath(base, layer, list(map(len, weights)), x.shape[1], len(below[0]), scale)
    layer.lora_A.copy_(torch.cat(below))
    layer.lora_B.copy_(torch.block_diag(*above))
    return path.apply(layer, x)
