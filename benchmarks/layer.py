"""The check of speed: one full-size layer of gpt-oss-120b and its log-probs, and from them the seconds of a step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from benchmarks.checks import Passed, choose_device
from benchmarks.measure import measure_peak, time_in_turn
from benchmarks.random_model import FULL, fill_
from grpo.launch.cost import fit_update
from grpo.model import attention, experts
from grpo.model.architecture import Architecture
from grpo.model.vocabulary import Allocated
from grpo.stack.problem import UserError
from grpo.train.log_probs import token_scores

LENGTHS = (4096, 16_384)
Ways = dict[str, Callable[[], torch.Tensor]]


def check(gpus: int, lengths: tuple[int, ...] = LENGTHS, shape: Architecture = FULL) -> Passed:
    """Time a layer at two lengths. From these, :mod:`grpo.launch.cost` predicts the seconds of a step."""
    device = torch.device(choose_device(gpus))
    layer, config = _build(shape, device)
    numbers: dict[str, Any] = {"tokens": list(lengths), "forward_s": [], "train_s": [], "scores_s": [], "peak_gb": []}
    parts = []
    for tokens in lengths:
        ways = _make_passes(layer, config, tokens, device)
        for name, run_pass in ways.items():
            first, again = run_pass(), run_pass()
            if not first.isfinite().all():
                raise UserError(f"the {name} pass of {tokens:,} tokens has values that are not finite")
            if not torch.equal(first, again):
                raise UserError(f"the {name} pass of {tokens:,} tokens differs when it is repeated")
        peak = measure_peak(ways["train"], device) / 1e9
        numbers["peak_gb"].append(peak)
        seconds = time_in_turn(ways | {"scores": _make_scoring(tokens, shape, device)}, 3, device)
        for name, value in seconds.items():
            numbers[f"{name}_s"].append(value)
        train, forward = 1e3 * seconds["train"], 1e3 * seconds["forward"]
        parts.append(f"{tokens:,} tokens {train:.0f} ms (forward {forward:.0f}), {peak:.1f} GB")
    of_batch, of_token = fit_update(numbers)
    predicted = f"{16 * (of_batch + of_token * lengths[0]):.0f} s to train on 16 rollouts of {lengths[0]:,}"
    return Passed(f"{'; '.join(parts)}; predicted: {predicted}", numbers)


def _build(shape: Architecture, device: torch.device) -> tuple[Any, GptOssConfig]:
    """Return a frozen layer with full attention, packed experts and random weights; and its configuration."""
    attention.register()
    config = GptOssConfig(**replace(shape, layers=2, mxfp4=False).config())
    config._attn_implementation = attention.NAME
    with torch.device("meta"):
        model = GptOssForCausalLM(config)
    experts.install(model, packed=True)
    layer: Any = model.model.layers[1]
    torch.manual_seed(0)
    for name, described in list(layer.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        dtype = torch.uint8 if described.dtype == torch.uint8 else torch.bfloat16
        values = torch.empty(described.shape, dtype=dtype, device=device)
        fill_(name, values, values.shape[-1])
        layer.get_submodule(owner).register_parameter(leaf, torch.nn.Parameter(values, requires_grad=False))
    return layer.train(), config


def _make_passes(layer: Any, config: GptOssConfig, tokens: int, device: torch.device) -> Ways:
    """Return the passes of one sequence: forward alone, and with gradient checkpointing and backward."""
    torch.manual_seed(1)
    states, upstream = (torch.randn(1, tokens, config.hidden_size, device=device).bfloat16() for _ in range(2))
    positions = torch.arange(tokens, device=device)[None]
    embeddings = GptOssRotaryEmbedding(config).to(device)(states, positions)
    mask = attention.SinkMask(torch.ones(1, tokens, dtype=torch.bool, device=device), None)

    def run(given: torch.Tensor) -> torch.Tensor:
        result = layer(given, attention_mask=mask, position_ids=positions, position_embeddings=embeddings)
        return result[0] if isinstance(result, tuple) else result

    def train() -> torch.Tensor:
        given = states.detach().requires_grad_()
        checkpoint(run, given, use_reentrant=True).backward(upstream)
        assert given.grad is not None
        return given.grad

    return {"forward": torch.no_grad()(lambda: run(states)), "train": train}


def _make_scoring(tokens: int, shape: Architecture, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function that computes log-probs with their gradient."""
    torch.manual_seed(2)
    weight = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=torch.bfloat16) * 0.02
    states = torch.randn(tokens, shape.hidden, device=device).bfloat16().requires_grad_()
    targets, allocated = torch.randint(shape.vocabulary - 1, (tokens,), device=device), Allocated(shape.vocabulary - 1)
    return lambda: torch.autograd.grad(token_scores(states, weight, targets, allocated).log_probs.sum(), states)[0]
