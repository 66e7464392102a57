"""A stand-in for vLLM's attention module of gpt-oss in a worker, as far as the adapter's layers use it."""

from types import SimpleNamespace

import pytest
import torch

from grpo.lora import vllm_lora

HIDDEN, RANK, SCALE = 64, 8, 1.7
SIZES = {"q": 128, "k": 32, "v": 32}
ADDITIONAL = {"lora_rank": RANK, "lora_scale": SCALE}


class Frozen:
    """Stands in for vLLM's method of a linear layer: a plain product."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


class Projection(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)
        self.quant_method = Frozen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply(self, x)


class WorkersAttention:
    """The projections in worker `rank` of an engine, with adapters if the engine's configuration has an adapter.

    Args:
        weights: `[out, in]` of q, k, v and o.
    """

    def __init__(self, weights: dict[str, torch.Tensor], rank: int = 0, workers: int = 1, config=None) -> None:
        self.rank, self.hidden_size = rank, HIDDEN
        self.q_size, self.kv_size = (SIZES[name] // workers for name in ("q", "k"))
        self.qkv_proj = Projection(torch.cat([weights[name].chunk(workers)[rank] for name in SIZES]))
        self.o_proj = Projection(weights["o"].chunk(workers, 1)[rank])
        vllm_lora.attach_if_trained(self, config or SimpleNamespace(additional_config=dict(ADDITIONAL)))

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output of q, k and v for `x`, and that of o for `y`."""
        return self.qkv_proj(x), self.o_proj(y)

    def list_addresses(self) -> list[int]:
        return [buffer.data_ptr() for layer in (self.qkv_proj, self.o_proj) for buffer in layer.buffers()]

    def load(self, values: dict[str, torch.Tensor]) -> vllm_lora.Applied:
        """Take this worker's part of an adapter."""
        applied = vllm_lora.Applied()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vllm_lora, "get_tensor_model_parallel_rank", lambda: self.rank)
            vllm_lora.fill(self, {name: (number, each) for number, (name, each) in enumerate(values.items())}, applied)
        return applied


def draw_tensor(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 0.1).bfloat16()


def draw_inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of both layers."""
    return draw_tensor(tokens, HIDDEN), draw_tensor(tokens, SIZES["q"])


def draw_weights() -> dict[str, torch.Tensor]:
    return {name: draw_tensor(size, HIDDEN) for name, size in SIZES.items()} | {"o": draw_tensor(HIDDEN, SIZES["q"])}


def draw_adapter(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A and B of each projection, whole."""
    values = {}
    for name, weight in weights.items():
        values[f"{name}_proj.lora_A"] = draw_tensor(RANK, weight.shape[1])
        values[f"{name}_proj.lora_B"] = draw_tensor(len(weight), RANK)
    return values
