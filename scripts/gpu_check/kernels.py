"""Rungs about the kernels of the actor, each against a definition in plain PyTorch.

Unpacking MXFP4 and the receipt of a sync must be equal bit for bit. The others round to bf16, whose step is 0.4%: a
result or a gradient may differ from float64 by :data:`ROUNDING` of its norm.
"""

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.parts.random_values import expert_values
from grpo.stack.problem import UserError
from scripts.gpu_check.rung import Passed, choose_device

ROUNDING = 0.02
# E2M1's values in the order of their codes: OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def dequantize_by_definition(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what the specification of MXFP4 says, in float64: `[experts, out, in]`."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    values = torch.cat([E2M1, -E2M1])[codes]
    return (values * torch.exp2(scales.double() - 127).unsqueeze(-1)).flatten(-2)


def every_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """Return blocks and scales with every byte under every scale but 255, which is NaN."""
    blocks = torch.arange(256, dtype=torch.uint8).expand(1, 255, 256).reshape(1, 255, 16, 16).contiguous()
    return blocks, torch.arange(255, dtype=torch.uint8).view(1, 255, 1).expand(1, 255, 16).contiguous()


def mxfp4(gpus: int) -> Passed:
    """Unpack every byte with every scale, bit for bit as the specification says."""
    device = choose_device(gpus)
    from grpo.model.mxfp4_triton import unpack

    blocks, scales = every_pair()
    result, expected = (
        unpack(blocks.to(device), scales.to(device)).cpu(),
        dequantize_by_definition(blocks, scales).bfloat16(),
    )
    wrong = result.view(torch.int16) != expected.view(torch.int16)
    if count := int(wrong.sum()):
        raise UserError(f"{count} of {wrong.numel()} values are unpacked wrong")
    return Passed(f"{wrong.numel():,} values of all 65,280 pairs of byte and scale: bit-equal", {"wrong": 0})


def relative(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much of the expected norm values differ; `expected` is on the CPU in float64."""
    return ((values.detach().cpu().double() - expected).norm() / expected.norm()).item()


def judge_errors(what: str, errors: dict[str, float], limit: float = ROUNDING) -> Passed:
    name, worst = max(errors.items(), key=lambda pair: pair[1] if pair[1] == pair[1] else float("inf"))
    if not worst < limit:
        raise UserError(f"{what}: {name} differs from float64 by {worst:.2%} of its norm; {limit:.0%} are rounding")
    return Passed(f"{what}: at most {worst:.2%} from float64 ({name})", {"errors": errors, "limit": limit})


def experts(gpus: int, count: int = 32, hidden: int = 256, tokens: int = 300) -> Passed:
    """Grouped products over packed and bf16 experts, forward and backward; both equal each other bit for bit."""
    device = choose_device(gpus)
    from grpo.model import routing
    from grpo.model.experts import Experts

    generator = torch.Generator().manual_seed(0)
    config: Any = SimpleNamespace(num_local_experts=count, hidden_size=hidden, intermediate_size=hidden)
    values = dict(expert_values(count, hidden, generator))
    states, upstream = torch.randn(2, 1, tokens, hidden, generator=generator).bfloat16().unbind()
    top, choices = torch.randn(tokens, count, generator=generator).topk(4)
    weights = torch.zeros(tokens, count).scatter(1, choices, top.softmax(-1)).bfloat16()
    as_given = routing.format_router_weights(top.softmax(-1), choices, count).bfloat16()
    exact = states.double().requires_grad_()
    expected = _expert_definition(values, exact, choices, weights.double())
    (wanted,) = torch.autograd.grad(expected, exact, upstream.double())

    results = {}
    for packed in (True, False):
        layer = Experts(config, packed).to(device)
        for name, parameter in layer.named_parameters():
            parameter.data = values[name].to(device)
        given = states.to(device).requires_grad_()
        result = layer(given, router_indices=choices.to(device), routing_weights=as_given.to(device))
        results[packed] = [result.detach(), *torch.autograd.grad(result, given, upstream.to(device))]
    if not all(map(torch.equal, results[True], results[False])):
        raise UserError("packed experts and bf16 experts have other results")
    errors = {
        name: relative(*pair)
        for name, *pair in zip(("result", "gradient"), results[True], (expected.detach(), wanted), strict=True)
    }
    return judge_errors(f"{count} experts, {tokens} tokens; packed equals bf16 bit for bit", errors)


def _expert_definition(
    values: dict[str, torch.Tensor], states: torch.Tensor, choices: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return gpt-oss's experts `[1, tokens, hidden]`, one token and expert after the other in groups of an expert."""
    flat = states.flatten(0, 1)
    result = torch.zeros_like(flat)
    for expert in choices.unique().tolist():
        rows = (choices == expert).any(-1).nonzero().flatten()
        gate_up = flat[rows] @ values["gate_up_proj"][expert].double() + values["gate_up_proj_bias"][expert].double()
        gate, up = gate_up[:, ::2].clamp(max=7), gate_up[:, 1::2].clamp(-7, 7)
        active = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        out = active @ values["down_proj"][expert].double() + values["down_proj_bias"][expert].double()
        result = result.index_add(0, rows, out * weights[rows, expert, None])
    return result.view_as(states)


def attention(gpus: int, length: int = 300, window: int = 128) -> Passed:
    """Attention with sinks, full and sliding, with padding, forward and backward."""
    device = choose_device(gpus)
    names = ("result", "d query", "d key", "d value", "d sinks")
    windows: dict[str, int | None] = {"full": None, "sliding": window}
    errors: dict[str, float] = {}
    for kind, of_kind in windows.items():
        for name, pair in zip(names, attend(device, of_kind, length, 64), strict=True):
            errors[f"{kind} {name}"] = relative(*pair)
    return judge_errors(f"attention with sinks, {length} tokens", errors)


def attend(device: str, window: int | None, length: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return result and gradients of the Triton kernel, each with what the definition in float64 says.

    Three sequences: whole, padded on the left, padded on the right. In bf16 on a GPU, in fp32 in Triton's interpreter.
    """
    from grpo.model.attention import SinkMask
    from grpo.model.attention_check import definition
    from grpo.model.attention_triton import SinkAttention

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = [(3, length, 4, size), (3, length, 2, size), (3, length, 2, size)]
    exact = [torch.randn(shape, generator=generator).to(dtype).double().transpose(1, 2) for shape in shapes]
    exact.append(torch.randn(4, generator=generator).to(dtype).double())
    tokens = torch.ones(3, length, dtype=torch.bool)
    tokens[1, : length // 3] = False
    tokens[2, length - length // 4 :] = False
    given = [values.to(device, dtype).requires_grad_() for values in exact]
    exact = [values.requires_grad_() for values in exact]
    expected = definition(exact[0], exact[1], exact[2], exact[3], SinkMask(tokens, window), 0.3)
    result = SinkAttention.apply(*given, tokens.to(device), window, 0.3)
    upstream = torch.randn(expected.shape, generator=generator).to(dtype)
    of_result = torch.autograd.grad(result, given, upstream.to(device))
    of_expected = torch.autograd.grad(expected, exact, upstream.double())
    return list(zip([result, *of_result], [expected.detach(), *of_expected], strict=True))


def log_probs(gpus: int, tokens: int = 600, vocabulary: int = 20_000) -> Passed:
    """Log-probs and entropy in chunks, with the gradient, against float64 over the same bf16 inputs."""
    device = choose_device(gpus)
    from grpo.model.vocabulary import Allocated
    from grpo.update.log_probs import token_scores

    generator = torch.Generator().manual_seed(0)
    rows, width = vocabulary - vocabulary // 20, 256
    weight = (torch.randn(vocabulary, width, generator=generator) * 0.1).bfloat16()
    hidden = torch.randn(tokens, width, generator=generator).bfloat16()
    targets = torch.randint(rows, (tokens,), generator=generator)
    exact = hidden.double().requires_grad_()
    logs = (exact @ weight.double().T)[:, :rows].log_softmax(-1)
    chosen = logs.gather(-1, targets[:, None])[:, 0]
    entropy = -(logs.exp() * logs).sum(-1).detach()
    (wanted,) = torch.autograd.grad(chosen.sum(), exact)

    given = hidden.to(device).requires_grad_()
    scores = token_scores(given, weight.to(device), targets.to(device), Allocated(rows))
    (gradient,) = torch.autograd.grad(scores.log_probs.sum(), given)
    errors = {
        "log-probs": relative(scores.log_probs, chosen.detach()),
        "entropy": relative(scores.entropy, entropy),
        "gradient": relative(gradient, wanted),
    }
    return judge_errors(f"log-probs of {tokens} tokens over {rows:,} rows", errors)


def receipt(gpus: int) -> Passed:
    """The checksums of an adapter's slices on GPUs add up to the receipt that the trainer computes on the CPU."""
    device = choose_device(gpus)
    from grpo.lora import adapter

    generator = torch.Generator().manual_seed(0)
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": shape
        for layer in range(3)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        for half, shape in (("A", (16, 256)), ("B", (128, 16)))
    }
    specs = adapter.layout(shapes, shapes.values())
    flat = torch.randn(specs[-1].offset + specs[-1].numel, generator=generator).bfloat16()
    expected = adapter.Receipt.of(flat, specs)
    for workers in (1, 2):
        total = 0
        for worker in range(workers):
            sums, rows = [], []
            for number, (name, tensor) in enumerate(adapter.unflatten(flat.to(device), specs).items()):
                part, first = _slice_tensor(name, tensor, worker, workers)
                sums.append(adapter.row_sums(part))
                rows.append((number, first, len(part)))
            total += int(adapter.checksum(sums, tuple(rows)))
        if total % 2**64 != expected.checksum(workers):
            raise UserError(f"the receipt of {workers} workers on {device} is not the CPU's")
    return Passed(f"{len(specs)} tensors, whole and in two halves: equal to the CPU's", {"tensors": len(specs)})


def _slice_tensor(name: str, tensor: torch.Tensor, worker: int, workers: int) -> tuple[torch.Tensor, int]:
    """Return what a worker of an engine holds of an adapter's tensor, and its first row."""
    from grpo.lora.adapter import is_split

    if not is_split(name):
        return tensor, 0
    if "o_proj" in name:  # by its inputs
        return tensor.chunk(workers, 1)[worker].contiguous(), 0
    part = tensor.chunk(workers)[worker]
    return part, worker * len(part)
