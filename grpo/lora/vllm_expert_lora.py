"""The experts' LoRA adapter inside a vLLM worker, unmerged beside each layer's frozen experts.

vLLM's kernels compute a layer's experts in one call, with the activation inside, and have no place for what is added
before it. A layer with adapters is therefore composed of the trainer's parts: rows sorted by expert, products, and sums
in the trainer's order. Only the product with the frozen weight is the engine's own: Triton's kernel for MXFP4 on a GPU,
a grouped product in bf16 on a CPU. Nothing waits for the device, so the layer can be captured in a CUDA graph.

Tensor parallelism cuts the intermediate size: workers have rows of gate_up's B and columns of down's A.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from grpo.lora.expert_form import MODULES
from grpo.model import mxfp4
from grpo.model.experts import ALPHA, LIMIT, ExpertRows, combine_rows, gate, gather_rows, sort_rows
from grpo.stack.problem import UserError
from grpo.stack.upstream import Experts

_UNIT = 8  # grouped products want rows of a multiple of 16 bytes
# Returns the product of sorted rows [R, in] with a layer's w13 or w2, to which it adds an update [R, out] and the bias.
Product = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]


def find_weights(experts: Any) -> Experts:
    """Return what holds the weights of a layer's experts: the module itself, or one inside of it from vLLM 0.29 on."""
    return getattr(experts, "routed_experts", experts)


def attach(experts: Experts, config: VllmConfig, rank: int, scale: float) -> None:
    """Give the experts of a layer an adapter of zeros.

    Their buffers are bf16 and on the layer's device: gate_up's A ``[E, R, H]`` and B ``[E, 2I, R]``, down's A
    ``[E, R, I]`` and B ``[E, H, R]``. I is the worker's part, and R the rank, up to a multiple of 8.

    Args:
        rank: of each expert.
        scale: of the whole adapter, alpha / r.

    Raises:
        UserError: if this build's experts cannot take an adapter.
    """
    make_product = _choose_product(experts)
    count, hidden, inner = len(experts.w13_bias), experts.hidden_size, experts.w13_bias.shape[1] // 2
    experts.inner_part = _cut(experts, config.model_config.hf_config.intermediate_size)
    padded = -(-rank // _UNIT) * _UNIT
    shapes = {
        "gate_up_A": (count, padded, hidden),
        "gate_up_B": (count, 2 * inner, padded),
        "down_A": (count, padded, inner),
        "down_B": (count, hidden, padded),
    }
    for name, shape in shapes.items():
        experts.register_buffer(f"lora_{name}", experts.w2_bias.new_zeros(shape), persistent=False)
    experts.expert_rank = rank
    method = experts.quant_method

    def apply(layer: Experts, x: torch.Tensor, router_logits: torch.Tensor, input_ids: object = None) -> torch.Tensor:
        del input_ids  # of vLLM 0.29, for other models
        return compute(layer, make_product, x, router_logits, scale)

    method.apply_monolithic = apply
    if make_product is multiply_bf16:
        method.process_weights_after_loading = lambda layer: None  # it would pack the weights for vLLM's kernel


def _choose_product(experts: Experts) -> Callable[[Experts, ExpertRows], Product]:
    method = experts.quant_method
    backend = getattr(method, "mxfp4_backend", None)
    if backend is not None:
        if backend.name == "TRITON" and method.is_monolithic:
            return multiply_mxfp4
        found = f"the MXFP4 kernels {backend.name}" + ("" if method.is_monolithic else " in vLLM's modular form")
    elif isinstance(method, UnquantizedFusedMoEMethod) and method.is_monolithic:
        return multiply_bf16
    else:
        found = f"the kernels of {type(method).__name__}"
    raise UserError(
        f"the engine's experts cannot have an adapter with {found}, only with vLLM's Triton kernels for MXFP4",
        "use GPUs of Hopper's generation, a model in MXFP4 and vLLM's own choice of kernels, or take experts out of "
        "--target_modules",
    )


def compute(
    layer: Experts,
    make_product: Callable[[Experts, ExpertRows], Product],
    x: torch.Tensor,
    router_logits: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return the result of a layer's experts in this worker, ``[T, H]``.

    Args:
        x: bf16 ``[T, H]``.
        router_logits: ``[T, E]``.
    """
    values, experts = router_logits.topk(layer.top_k, dim=-1)
    choices, order = experts.sort(dim=-1)  # the trainer adds them up in this order
    weights = values.softmax(-1).gather(1, order)
    rows = sort_rows(choices, router_logits.shape[1])
    multiply = make_product(layer, rows)

    def update(states: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        hidden = torch._grouped_mm(states, a.transpose(1, 2), offs=rows.ends).mul_(scale)
        return torch._grouped_mm(hidden, b.transpose(1, 2), offs=rows.ends)

    states = gather_rows(x, rows)
    active = _activate(multiply("w13", states, update(states, layer.lora_gate_up_A, layer.lora_gate_up_B)))
    outputs = multiply("w2", active, update(active, layer.lora_down_A, layer.lora_down_B))
    return combine_rows(outputs, weights.to(outputs.dtype), rows)


def _activate(gate_up: torch.Tensor) -> torch.Tensor:
    """Return the gated activation ``[R, I]`` of ``[R, 2I]``."""
    if not gate_up.is_cuda:
        return gate(gate_up)
    active = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    torch.ops._C.swigluoai_and_mul(active, gate_up, ALPHA, LIMIT)  # vLLM's, for the same activation
    return active


def multiply_bf16(layer: Experts, rows: ExpertRows) -> Product:
    """Return the products with weights as vLLM loads them, bf16 ``[E, out, in]``, with the trainer's operations."""

    def multiply(name: str, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        weight, bias = getattr(layer, f"{name}_weight"), getattr(layer, f"{name}_bias")
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=rows.ends).add_(update).add_(bias[rows.expert])

    return multiply


def multiply_mxfp4(layer: Experts, rows: ExpertRows) -> Product:
    """Return the products with packed weights, by vLLM's kernel without its activation, gathering, and summing."""
    from triton_kernels.matmul_ogs import RoutingData, matmul_ogs
    from triton_kernels.routing import compute_expt_data

    counts = rows.ends.diff(prepend=rows.ends.new_zeros(1))
    blocks = compute_expt_data(counts, len(counts), len(rows.expert))
    routing = RoutingData(None, counts, len(counts), layer.top_k, blocks)
    method = layer.quant_method

    def multiply(name: str, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        weight, bias = getattr(layer, f"{name}_weight"), getattr(layer, f"{name}_bias")
        precision = getattr(method, f"{name}_precision_config")
        return matmul_ogs(x, weight, bias, routing, precision_config=precision).add_(update)

    return multiply


def slots(experts: Experts) -> dict[str, tuple[torch.Tensor, tuple[slice, ...]]]:
    """Map each adapter tensor of one layer's experts to its buffer on this worker, and to the part that it holds."""
    rank, everything = experts.expert_rank, slice(None)
    part = experts.inner_part
    held, pairs = part.stop - part.start, slice(2 * part.start, 2 * part.stop)  # vLLM pads weights
    gate_up, down = MODULES.values()
    return {
        f"{gate_up}.lora_A": (experts.lora_gate_up_A[:, :rank], (everything,)),
        f"{gate_up}.lora_B": (experts.lora_gate_up_B[:, : 2 * held, :rank], (everything, pairs)),
        f"{down}.lora_A": (experts.lora_down_A[:, :rank, :held], (everything, everything, part)),
        f"{down}.lora_B": (experts.lora_down_B[..., :rank], (everything,)),
    }


def _cut(experts: Experts, whole: int) -> slice:
    """Return the part of the intermediate size that this worker has. MXFP4 is cut between groups of values."""
    rank, workers = experts.moe_config.tp_rank, experts.moe_config.tp_size
    unit = mxfp4.GROUP if hasattr(experts.quant_method, "mxfp4_backend") else 1
    share = -(-whole // (unit * workers)) * unit
    return slice(min(rank * share, whole), min((rank + 1) * share, whole))
