"""A stand-in for vLLM's experts of a layer in a worker, with vLLM's method on CPUs."""

from types import SimpleNamespace

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from grpo.lora import vllm_lora
from grpo.model.experts import Experts

INTERMEDIATE = 96  # of all workers
ADDITIONAL = {"lora_rank": 8, "lora_scale": 1.7, "expert_rank": 3}
SERIAL = SimpleNamespace(enable_expert_parallel=False, data_parallel_size=1)


def configure(**parallel: object) -> SimpleNamespace:
    """Return an engine's configuration, as far as it is asked."""
    return SimpleNamespace(
        additional_config=dict(ADDITIONAL),
        parallel_config=SimpleNamespace(**vars(SERIAL) | parallel),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(intermediate_size=INTERMEDIATE)),
    )


class Unquantized(UnquantizedFusedMoEMethod):
    """vLLM's method, as it is on CPUs."""

    is_monolithic = True

    def __init__(self) -> None:
        """Choose no kernels."""


class WorkersExperts(torch.nn.Module):
    """The experts in worker `rank` of an engine; `trained` has the frozen weights, as the trainer holds them."""

    def __init__(self, trained: Experts, top_k: int, rank: int = 0, workers: int = 1, method=None) -> None:
        super().__init__()
        _, self.hidden_size, both = trained.shapes["gate_up_proj"]
        assert both == 2 * INTERMEDIATE
        self.top_k, self.moe_config = top_k, SimpleNamespace(tp_rank=rank, tp_size=workers)
        self.w13_weight = trained.gate_up_proj.transpose(1, 2).chunk(workers, 1)[rank].contiguous()
        self.w13_bias = trained.gate_up_proj_bias.chunk(workers, 1)[rank]
        self.w2_weight = trained.down_proj.transpose(1, 2).chunk(workers, 2)[rank].contiguous()
        self.w2_bias = trained.down_proj_bias * (rank == 0)
        self.quant_method = method or Unquantized()
        vllm_lora.attach_to_experts(self, configure())

    def forward(self, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply_monolithic(layer=self, x=x, router_logits=router_logits)
