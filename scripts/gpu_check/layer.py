"""The rung about speed: one full-size layer of gpt-oss-120b and its log-probs, and from them the seconds of a step."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssDecoderLayer, GptOssRotaryEmbedding

from benchmarks.experts import count_launches_and_waits
from benchmarks.harness import time_in_turn
from benchmarks.parts.memory import measure_peak
from benchmarks.parts.random_values import fill_
from grpo.model import attention, experts, mxfp4, routing
from grpo.model.released import RELEASED
from grpo.model.vocabulary import Allocated
from grpo.stack.problem import UserError
from grpo.update.log_probs import token_scores
from scripts.gpu_check.rung import Passed, choose_device

_120B = RELEASED["openai/gpt-oss-120b"]
LENGTHS = (4096, 16_384)


class Routed(torch.nn.Module):
    """The routed experts of a layer, in place of transformers' GptOssMLP, whose versions call experts differently."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.chosen = config.num_experts_per_tok
        self.router = torch.nn.Linear(config.hidden_size, config.num_local_experts)
        self.experts = experts.Experts(config, packed=True)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.router(states.flatten(0, -2))
        top, choices = logits.topk(self.chosen)
        weights = routing.format_router_weights(top.softmax(-1), choices, logits.shape[1])
        return self.experts(states, router_indices=choices, routing_weights=weights), weights


def make_config(**changes: int) -> GptOssConfig:
    """Return the configuration of gpt-oss-120b with the second of its layers, which has full attention."""
    shape: dict[str, Any] = {
        "hidden_size": _120B.hidden,
        "intermediate_size": _120B.intermediate,
        "num_local_experts": _120B.experts,
        "num_experts_per_tok": _120B.experts_per_token,
        "num_attention_heads": _120B.heads,
        "num_key_value_heads": _120B.key_value_heads,
        "head_dim": _120B.head_dim,
    } | changes
    attention.register()
    config = GptOssConfig(num_hidden_layers=2, **shape)
    config._attn_implementation = attention.NAME
    return config


def build(config: GptOssConfig, device: str) -> GptOssDecoderLayer:
    """Return a frozen layer with packed experts and random weights."""
    with torch.device("meta"):
        layer: Any = GptOssDecoderLayer(config, 1)
        layer.mlp = Routed(config)
    torch.manual_seed(0)
    for name, described in list(layer.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        dtype = torch.uint8 if described.dtype == torch.uint8 else torch.bfloat16
        values = torch.empty(described.shape, dtype=dtype, device=device)
        fill_(name, values, values.shape[-1])
        layer.get_submodule(owner).register_parameter(leaf, torch.nn.Parameter(values, requires_grad=False))
    return layer.train()


def passes(layer: GptOssDecoderLayer, config: GptOssConfig, tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """Return the passes of one sequence: forward alone, and with gradient checkpointing and backward."""
    rotary = GptOssRotaryEmbedding(config).to(device)
    torch.manual_seed(1)
    states, upstream = (torch.randn(1, tokens, config.hidden_size, device=device).bfloat16() for _ in range(2))
    positions = torch.arange(tokens, device=device)[None]
    embeddings = rotary(states, positions)
    mask = attention.SinkMask(torch.ones(1, tokens, dtype=torch.bool, device=device), None)

    def run(given: torch.Tensor) -> torch.Tensor:
        result = layer(given, attention_mask=mask, position_ids=positions, position_embeddings=embeddings)
        return result[0] if isinstance(result, tuple) else result

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return run(states)

    def train() -> torch.Tensor:
        given = states.detach().requires_grad_()
        checkpoint(run, given, use_reentrant=True).backward(upstream)
        assert given.grad is not None
        return given.grad

    return {"forward": forward, "train": train}


def scoring(tokens: int, vocabulary: int, hidden: int, device: str) -> Callable[[], Any]:
    """Return a function that computes log-probs with their gradient."""
    torch.manual_seed(2)
    weight = (torch.randn(vocabulary, hidden, device=device, dtype=torch.bfloat16)) * 0.02
    states = torch.randn(tokens, hidden, device=device).bfloat16().requires_grad_()
    targets = torch.randint(vocabulary - 1, (tokens,), device=device)

    def score() -> torch.Tensor:
        values = token_scores(states, weight, targets, Allocated(vocabulary - 1)).log_probs
        return torch.autograd.grad(values.sum(), states)[0]

    return score


def check(
    gpus: int,
    lengths: tuple[int, ...] = LENGTHS,
    vocabulary: int = _120B.vocabulary,
    shape: dict[str, int] | None = None,
) -> Passed:
    """Time a layer at two lengths. From these, :mod:`grpo.launch.hours` predicts the seconds of a step."""
    device = choose_device(gpus)
    config = make_config(**shape or {})
    layer = build(config, device)
    on = torch.device(device)
    numbers: dict[str, Any] = {"tokens": list(lengths)}
    for name in ("forward_s", "train_s", "scores_s", "peak_gb"):
        numbers[name] = []
    begin = time.perf_counter()
    for tokens in lengths:
        ways = passes(layer, config, tokens, device)
        for name, run_pass in ways.items():
            first, again = run_pass(), run_pass()
            if not first.isfinite().all():
                raise UserError(f"the {name} pass of {tokens:,} tokens has values that are not finite")
            if not torch.equal(first, again):
                raise UserError(f"the {name} pass of {tokens:,} tokens differs when it is repeated")
        numbers["peak_gb"].append(measure_peak(ways["train"], on) / 1e9)
        timings = time_in_turn(ways | {"scores": scoring(tokens, vocabulary, config.hidden_size, device)}, 3, on)
        for name, timing in timings.items():
            numbers[f"{name}_s"].append(timing.seconds)
    numbers["launches"], _ = count_launches_and_waits(passes(layer, config, lengths[0], device)["train"], on)
    numbers["weights_gb"] = sum(p.numel() * p.itemsize for p in layer.parameters()) / 1e9
    numbers["unpacking_gb_per_s"] = unpacking(layer, on)
    numbers["whole_check_s"] = time.perf_counter() - begin
    parts = [
        f"{tokens:,} tokens {1e3 * train:.0f} ms (forward {1e3 * forward:.0f}), {peak:.1f} GB"
        for tokens, train, forward, peak in zip(
            lengths, numbers["train_s"], numbers["forward_s"], numbers["peak_gb"], strict=True
        )
    ]
    return Passed(f"{'; '.join(parts)}; {numbers['launches']} launches{_step(numbers)}", numbers)


def unpacking(layer: GptOssDecoderLayer, device: torch.device) -> float:
    """Return the GB/s of bf16 that unpacking the layer's experts writes."""
    parts = dict(layer.mlp.experts.named_parameters())
    pair = parts["down_proj_blocks"], parts["down_proj_scales"]
    timing = time_in_turn({"unpack": lambda: mxfp4.unpack_weights(*pair)}, 3, device)["unpack"]
    return 4 * pair[0].numel() / timing.seconds / 1e9


def _step(numbers: dict[str, Any]) -> str:
    """Say what the numbers mean for a step of the shipped recipe, as the plan would."""
    from grpo.launch.hours import fit_update

    (of_batch, of_token), tokens = fit_update(numbers), numbers["tokens"][0]
    return f"; predicted: {16 * (of_batch + of_token * tokens):.0f} s to train on 16 rollouts of {tokens:,}"
