"""Attention with sinks, forward and backward: transformers' eager attention and ours, with gpt-oss-120b's heads.

`stock` and `ours` are the peak of memory that a pass of a full layer takes beside its inputs. On a CPU that is the
memory of the process, on a GPU that of the allocator. Ours is measured at half the length as well: its growth is
linear. Stock keeps several numbers for each head and each two tokens: beyond --stock-tokens only ours is measured, and
`stock` and `ours` are those of --stock-tokens.
"""

import argparse
import types
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from benchmarks.harness import Result, time_in_turn
from benchmarks.machine import Copy
from benchmarks.parts.memory import measure_peak
from grpo.model import attention

ON_ANY_DEVICE = True
HEADS, KEY_VALUE_HEADS, SIZE, WINDOW = 64, 8, 64, 128
# Of two implementations of a sum in bf16.
TOLERANCE = 0.02
SIZES = {"tokens": 1024, "stock_tokens": 4096, "repeat": 2}


def run(options: argparse.Namespace, copy: Copy) -> Result:
    tokens = min(options.tokens, options.stock_tokens)
    passes = {
        f"{name}_{kind}": _make_pass(tokens, window, name == "stock", copy.device)
        for name in ("stock", "ours")
        for kind, window in (("full", None), ("sliding", WINDOW))
    }
    for kind in ("full", "sliding"):
        for value, wanted in zip(passes[f"ours_{kind}"](), passes[f"stock_{kind}"](), strict=True):
            if (value - wanted).norm() > TOLERANCE * wanted.norm():
                raise RuntimeError("ours and stock do not agree: run pytest tests/grpo/model/test_attention.py")
    peaks = {name: measure_peak(run_pass, copy.device) for name, run_pass in passes.items()}
    half = measure_peak(_make_pass(tokens // 2, None, False, copy.device), copy.device)
    timings = time_in_turn(passes, options.repeat, copy.device)
    longer = _measure_alone(options, copy.device) if options.tokens > tokens else {}
    return Result(
        what=f"peak memory of a forward and backward pass of {tokens} tokens through a full layer's attention, "
        f"{HEADS} heads on {KEY_VALUE_HEADS}, on {copy.device}",
        unit="GB",
        stock=peaks["stock_full"] / 1e9,
        ours=peaks["ours_full"] / 1e9,
        details={
            **{f"peak_{name}_gb": peak / 1e9 for name, peak in peaks.items()},
            **{f"seconds_{name}": timing.seconds for name, timing in timings.items()},
            "ours_at_half_the_length_gb": half / 1e9,
            "ours_bytes_per_further_token": (peaks["ours_full"] - half) / (tokens - tokens // 2),
            **longer,
        },
    )


def _measure_alone(options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Measure ours at a length that stock is not asked for."""
    details = {}
    for kind, window in (("full", None), ("sliding", WINDOW)):
        run_pass = _make_pass(options.tokens, window, False, device)
        name = f"ours_{kind}_{options.tokens}_tokens"
        details[f"peak_{name}_gb"] = measure_peak(run_pass, device) / 1e9
        details[f"seconds_{name}"] = time_in_turn({name: run_pass}, options.repeat, device)[name].seconds
    return details


def _make_pass(
    length: int, window: int | None, is_stock: bool, device: torch.device
) -> Callable[[], list[torch.Tensor]]:
    """Return a function that makes one pass, and returns the result and the gradients."""
    torch.manual_seed(0)
    shapes = [(1, HEADS, length, SIZE), (1, KEY_VALUE_HEADS, length, SIZE), (1, KEY_VALUE_HEADS, length, SIZE)]
    query, key, value, sinks = inputs = [
        torch.randn(shape, device=device).bfloat16().requires_grad_() for shape in (*shapes, (HEADS,))
    ]
    upstream = torch.randn(1, length, HEADS, SIZE, device=device).bfloat16()
    mask = attention.SinkMask(torch.ones(1, length, dtype=torch.bool, device=device), window)
    layer: Any = types.SimpleNamespace(sinks=sinks, num_key_value_groups=HEADS // KEY_VALUE_HEADS, training=False)

    def run_pass() -> list[torch.Tensor]:
        if is_stock:
            visible = mask.visible(slice(0, length), slice(0, length))[:, 0]
            bias = torch.zeros_like(visible, dtype=torch.bfloat16).masked_fill(~visible, -torch.inf)
            result, _ = eager_attention_forward(layer, query, key, value, bias, SIZE**-0.5)
        else:
            result, _ = attention.attend(layer, query, key, value, mask, SIZE**-0.5, sinks)
        return [result.detach(), *torch.autograd.grad(result, inputs, upstream)]

    return run_pass
