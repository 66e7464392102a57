"""Checks of the actor's kernels, each against a reference: transformers' code or a formula, in float64.

Unpacking MXFP4 and the checksum of a sync must be equal bit for bit. The others round to bf16, whose step is 0.4%: a
result or a gradient may differ from float64 by ROUNDING of its norm.
"""

from typing import Any

import torch

from benchmarks.checks import Passed, choose_device
from benchmarks.random_model import fill_
from grpo.stack.problem import UserError

ROUNDING = 0.02
Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]  # of each result: ours, and the reference's


def relative(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much of the expected norm values differ; `expected` is on the CPU in float64."""
    return ((values.detach().cpu().double() - expected.detach()).norm() / expected.norm()).item()


def judge(what: str, pairs: Pairs) -> Passed:
    """Raise UserError if one of the results differs by more than rounding."""
    errors = {name: relative(*pair) for name, pair in pairs.items()}
    name, worst = max(errors.items(), key=lambda pair: pair[1] if pair[1] == pair[1] else float("inf"))
    if not worst < ROUNDING:
        raise UserError(f"{what}: {name} differs from float64 by {worst:.2%} of its norm; {ROUNDING:.0%} are rounding")
    return Passed(f"{what}: at most {worst:.2%} from float64 ({name})", {"errors": errors, "limit": ROUNDING})


def mxfp4(gpus: int) -> Passed:
    """Unpack every byte with every scale but 255, which is NaN; transformers unpacks the same bits."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    from grpo.model.mxfp4_triton import unpack

    blocks = torch.arange(256, dtype=torch.uint8).expand(1, 255, 256).reshape(1, 255, 16, 16).contiguous()
    scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1).expand(1, 255, 16).contiguous()
    expected = convert_moe_packed_tensors(blocks, scales).transpose(1, 2).contiguous()
    device = choose_device(gpus)
    result = unpack(blocks.to(device), scales.to(device)).cpu()
    wrong = result.view(torch.int16) != expected.view(torch.int16)
    if count := int(wrong.sum()):
        raise UserError(f"{count} of {wrong.numel()} values are unpacked wrong")
    return Passed(f"{wrong.numel():,} values of all 65,280 pairs of byte and scale: bit-equal", {"wrong": 0})


def experts(gpus: int, count: int = 32, hidden: int = 256, tokens: int = 300) -> Passed:
    """Grouped products over packed and bf16 experts, forward and backward; both equal each other bit for bit."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    from grpo.model import routing
    from grpo.model.experts import Experts

    device, generator = choose_device(gpus), torch.Generator().manual_seed(0)
    config = GptOssConfig(num_local_experts=count, hidden_size=hidden, intermediate_size=hidden)
    values = _draw_experts(Experts(config, packed=True), generator)
    states, upstream = torch.randn(2, 1, tokens, hidden, generator=generator).bfloat16().unbind()
    top, choices = torch.randn(tokens, count, generator=generator).topk(4)
    weights = routing.format_router_weights(top.softmax(-1), choices, count).bfloat16()

    def run(layer: Any, *given: torch.Tensor) -> list[torch.Tensor]:
        x = given[0].requires_grad_()
        result = layer(x, router_indices=given[1], routing_weights=given[2])
        return [result.detach(), *torch.autograd.grad(result, x, given[3])]

    results = {}
    for packed in (True, False):
        layer = Experts(config, packed).to(device)
        for name, parameter in layer.named_parameters():
            parameter.data = values[name].to(device)
        results[packed] = run(layer, *(each.to(device) for each in (states.clone(), choices, weights, upstream)))
    if not all(map(torch.equal, results[True], results[False])):
        raise UserError("packed experts and bf16 experts have other results")
    stock = GptOssExperts(config).double()
    stock.load_state_dict({name: values[name].double() for name, _ in stock.named_parameters()})
    expected = run(stock, states.double(), choices, weights.double(), upstream.double())
    pairs = dict(zip(("result", "gradient"), zip(results[True], expected, strict=True), strict=True))
    return judge(f"{count} experts, {tokens} tokens; packed equals bf16 bit for bit", pairs)


def _draw_experts(layer: torch.nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return the tensors of a layer's experts by name, packed and in bf16."""
    from grpo.model import mxfp4
    from grpo.model.architecture import is_packed

    values = {}
    for name, parameter in layer.named_parameters():
        values[name] = torch.empty(parameter.shape, dtype=torch.uint8 if is_packed(name) else torch.bfloat16)
        fill_(name, values[name], parameter.shape[-1], generator)
    for name in ("gate_up_proj", "down_proj"):
        values[name] = mxfp4.dequantize(values[f"{name}_blocks"], values[f"{name}_scales"])
    return values


def attention(gpus: int, length: int = 300, window: int = 128) -> Passed:
    """Attention with sinks, full and sliding, with padding, forward and backward."""
    pairs: Pairs = {}
    for kind, of_kind in (("full", None), ("sliding", window)):
        found = attend(choose_device(gpus), of_kind, length, 64)
        pairs |= {f"{kind} {name}": pair for name, pair in found.items()}
    return judge(f"attention with sinks, {length} tokens", pairs)


def attend(device: str, window: int | None, length: int, size: int) -> Pairs:
    """Return result and gradients of the Triton kernel, each with what the definition in float64 says.

    Three sequences: whole, padded on the left, padded on the right. In bf16 on a GPU, in fp32 in Triton's interpreter.
    """
    from grpo.model.attention import SinkMask
    from grpo.model.attention_check import definition
    from grpo.model.attention_triton import SinkAttention

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = [(3, length, heads, size) for heads in (4, 2, 2)]
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
    ours = [result, *torch.autograd.grad(result, given, upstream.to(device))]
    theirs = [expected, *torch.autograd.grad(expected, exact, upstream.double())]
    names = ("result", "d query", "d key", "d value", "d sinks")
    return dict(zip(names, zip(ours, theirs, strict=True), strict=True))


def log_probs(gpus: int, tokens: int = 600, vocabulary: int = 20_000) -> Passed:
    """Log-probs and entropy in chunks, with the gradient, against float64 over the same bf16 inputs."""
    from grpo.model.vocabulary import Allocated
    from grpo.train.log_probs import token_scores

    device, generator = choose_device(gpus), torch.Generator().manual_seed(0)
    rows, width = vocabulary - vocabulary // 20, 256
    weight = (torch.randn(vocabulary, width, generator=generator) * 0.1).bfloat16()
    hidden = torch.randn(tokens, width, generator=generator).bfloat16()
    targets = torch.randint(rows, (tokens,), generator=generator)
    exact = hidden.double().requires_grad_()
    logs = (exact @ weight.double().T)[:, :rows].log_softmax(-1)
    chosen, entropy = logs.gather(-1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(-1)

    given = hidden.to(device).requires_grad_()
    scores = token_scores(given, weight.to(device), targets.to(device), Allocated(rows))
    ours, theirs = (torch.autograd.grad(of.sum(), x)[0] for of, x in ((scores.log_probs, given), (chosen, exact)))
    pairs = {"log-probs": (scores.log_probs, chosen), "entropy": (scores.entropy, entropy)}
    return judge(f"log-probs of {tokens} tokens over {rows:,} rows", {**pairs, "gradient": (ours, theirs)})


def checksum(gpus: int) -> Passed:
    """The checksums of an adapter's tensors on a GPU add up to the one that the trainer computes on the CPU."""
    from grpo.lora import adapter
    from grpo.model.architecture import ATTENTION_PROJECTIONS

    prefix, halves = "base_model.model.model.layers.0.self_attn", (("A", (16, 256)), ("B", (128, 16)))
    shapes = {f"{prefix}.{name}.lora_{half}.weight": shape for name in ATTENTION_PROJECTIONS for half, shape in halves}
    specs = adapter.layout(shapes, shapes.values())
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(specs[-1].offset + specs[-1].numel, generator=generator).bfloat16()
    tensors = adapter.unflatten(flat.to(choose_device(gpus)), specs).values()
    sums = [adapter.row_sums(tensor) for tensor in tensors]
    rows = tuple((number, 0, len(tensor)) for number, tensor in enumerate(tensors))
    if int(adapter.checksum(sums, rows)) % 2**64 != adapter.Checksums.of(flat, specs).checksum(1):
        raise UserError("the checksum of an adapter on the GPU is not the CPU's")
    return Passed(f"{len(specs)} tensors: equal to the CPU's", {"tensors": len(specs)})
