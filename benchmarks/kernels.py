"""Rungs about the kernels of the actor, each against a reference: transformers' code or a formula, in float64.

Unpacking MXFP4 and the receipt of a sync must be equal bit for bit. The others round to bf16, whose step is 0.4%: a
result or a gradient may differ from float64 by ROUNDING of its norm.
"""

from typing import Any

import torch

from benchmarks.ladder import Passed, choose_device
from benchmarks.random_model import draw_experts
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
    numbers = {"errors": errors, "limit": ROUNDING}
    return Passed(f"{what}: at most {worst:.2%} from float64 ({name})", numbers)


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
    values = dict(draw_experts(count, hidden, generator))
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


def receipt(gpus: int) -> Passed:
    """The checksums of an adapter's slices on GPUs add up to the receipt that the trainer computes on the CPU."""
    from grpo.lora import adapter

    device, generator = choose_device(gpus), torch.Generator().manual_seed(0)
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight": shape
        for layer in range(3)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        for half, shape in (("A", (16, 256)), ("B", (128, 16)))
    }
    specs = adapter.layout(shapes, shapes.values())
    flat = torch.randn(specs[-1].offset + specs[-1].numel, generator=generator).bfloat16()
    expected = adapter.Checksums.of(flat, specs)
    tensors = adapter.unflatten(flat.to(device), specs)
    for workers in (1, 2):
        total = 0
        for worker in range(workers):
            sums, rows = [], []
            for number, (name, tensor) in enumerate(tensors.items()):
                part, first = tensor, 0
                if adapter.is_split(name):  # a worker has a part of o's inputs, and of the outputs of q, k and v
                    part = tensor.chunk(workers, 1 if "o_proj" in name else 0)[worker].contiguous()
                    first = 0 if "o_proj" in name else worker * len(part)
                sums.append(adapter.row_sums(part))
                rows.append((number, first, len(part)))
            total += int(adapter.checksum(sums, tuple(rows)))
        if total % 2**64 != expected.checksum(workers):
            raise UserError(f"the receipt of {workers} workers on {device} is not the CPU's")
    return Passed(f"{len(specs)} tensors, whole and in two halves: equal to the CPU's", {"tensors": len(specs)})


class Frozen:
    """Stands in for vLLM's method of a linear layer: a plain product."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


@torch.no_grad()
def side_path(gpus: int, hidden: int = 2880, rank: int = 64, tokens: int = 64, scale: int = 2) -> Passed:
    """Compare gpt-oss-120b's two layers: that of q, k and v, cut by output, and o, whose parts are added."""
    device, pairs = choose_device(gpus), Pairs()
    layers = {"qkv": (hidden, {"q_proj": 4096, "k_proj": 512, "v_proj": 512}), "o": (4096, {"o_proj": hidden})}
    torch.manual_seed(0)
    for name, (inputs, outputs) in layers.items():
        peft = list(_make_layers(inputs, outputs, rank, scale).to(device, torch.bfloat16).values())
        x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
        exact = []
        for weight, a, b in ((matrix.double().cpu() for matrix in _matrices(each)) for each in peft):
            exact.append(x.double().cpu() @ (weight + scale * b @ a).T)
        pairs[f"{name} in PEFT"] = torch.cat([each(x) for each in peft], -1), torch.cat(exact, -1)
        for parts in (1, 2):
            results = [_worker_output(peft, x, part, parts, scale) for part in range(parts)]
            pair = torch.stack(results).sum(0), exact[0]
            if name == "qkv":  # each worker has its part of q, k and v
                halves = [each.chunk(parts, -1)[part] for part in range(parts) for each in exact]
                pair = torch.cat(results, -1), torch.cat(halves, -1)
            pairs[f"{name} in {parts} part{'s' * (parts > 1)}"] = pair
    return judge("side path, and PEFT", pairs)


def _make_layers(inputs: int, outputs: dict[str, int], rank: int, scale: int) -> torch.nn.ModuleDict:
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


def _worker_output(projections: list[Any], x: torch.Tensor, part: int, parts: int, scale: int) -> torch.Tensor:
    """Return what one of this many workers of an engine computes."""
    from grpo.lora.vllm_lora import LoraLinearMethod

    weights, below, above = map(list, zip(*map(_matrices, projections), strict=True))
    if len(projections) > 1:
        weights, above = ([matrix.chunk(parts)[part] for matrix in each] for each in (weights, above))
    else:
        weights, below = ([matrix.chunk(parts, 1)[part] for matrix in each] for each in (weights, below))
        x = x.chunk(parts, -1)[part]
    layer: Any = torch.nn.Module()
    base: Any = Frozen()
    layer.register_parameter("weight", torch.nn.Parameter(torch.cat(weights), requires_grad=False))
    path = LoraLinearMethod(base, layer, list(map(len, weights)), x.shape[1], len(below[0]), scale)
    layer.lora_A.copy_(torch.cat(below))
    layer.lora_B.copy_(torch.block_diag(*above))
    return path.apply(layer, x)
