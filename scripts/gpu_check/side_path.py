"""The rung about the adapter in an engine: vLLM's side path against PEFT, whole and in two tensor-parallel halves."""

from typing import Any

import torch

from scripts.gpu_check.kernels import judged, relative
from scripts.gpu_check.rung import Passed, device_of


class Frozen:
    """Stands in for vLLM's method of a linear layer: a plain product."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


def check(gpus: int, hidden: int = 2880, rank: int = 64, tokens: int = 64) -> Passed:
    """Compare each projection of gpt-oss-120b; q, k and v are cut by output, o by input, and its halves are added."""
    from peft import LoraConfig, get_peft_model

    scale, device = 2, device_of(gpus)
    errors: dict[str, float] = {}
    shapes = {"q_proj": (hidden, 4096), "k_proj": (hidden, 512), "o_proj": (4096, hidden)}
    torch.manual_seed(0)
    for name, (inputs, outputs) in shapes.items():
        base: Any = torch.nn.ModuleDict({name: torch.nn.Linear(inputs, outputs, bias=False)}).to(device, torch.bfloat16)
        lora = LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=[name])
        model: Any = get_peft_model(base, lora, autocast_adapter_dtype=False)
        wrapped = model.base_model.model[name]
        a, b = wrapped.lora_A["default"].weight, wrapped.lora_B["default"].weight
        for half in (a, b):
            torch.nn.init.normal_(half, std=0.05)
        x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
        with torch.no_grad():
            weight, by_output = base[name].base_layer.weight, name != "o_proj"
            exact = x.double().cpu() @ (weight.double() + scale * b.double() @ a.double()).T.cpu()
            errors[f"{name} in PEFT"] = relative(wrapped(x), exact)
            for parts in (1, 2):
                cut = [part_of(weight, a, b, x, part, parts, by_output) for part in range(parts)]
                results = [apply(*one, scale) for one in cut]
                whole = torch.cat(results, -1) if by_output else torch.stack(results).sum(0)
                errors[f"{name} in {parts} part{'s' * (parts > 1)}"] = relative(whole, exact)
    return judged("side path, and PEFT", errors)


def part_of(
    weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, part: int, parts: int, by_output: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weight, A, B and inputs of one of so many workers."""
    if by_output:
        return weight.chunk(parts)[part], a, b.chunk(parts)[part], x
    return weight.chunk(parts, 1)[part], a.chunk(parts, 1)[part], b, x.chunk(parts, -1)[part]


def apply(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return what an engine's worker computes."""
    from grpo.lora.side_path import SidePath

    layer: Any = torch.nn.Module()
    layer.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
    base: Any = Frozen()
    path = SidePath(base, layer, [len(weight)], weight.shape[1], len(a), scale)
    layer.lora_A[0].copy_(a)
    layer.lora_B.copy_(b)
    return path.apply(layer, x)
