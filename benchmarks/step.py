"""A training step: OpenRLHF's own classes without and with our patches, with packed experts and with bf16 ones.

A rollout is one optimizer step, and the entropy is logged with coefficient 0. It runs in one process without DeepSpeed.
Attention and experts have the sizes of gpt-oss-120b, but there are few layers and experts. Gradients, entropy and loss
must agree, which is checked. With several lengths, `stock` and `ours` are those of the longest that stock computes:
its attention keeps a number for each head and each two tokens, several times. Processor seconds are those of all
threads; other load on the machine changes them less.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Result
from benchmarks.machine import Copy
from benchmarks.parts.random_model import FULL, write_random_model
from benchmarks.parts.ranks import run_ranks
from benchmarks.parts.stock import copy_pristine
from grpo.stack.problem import UserError
from scripts.dequantize_checkpoint import dequantize_checkpoint

GB = 1e9
TOKENS_120B = 4096
# Two implementations of a sum in bf16 differ by a few units in the last of its 8 bits.
TOLERANCE = 0.02
Reports = dict[str, dict[str, Any]]  # of each way
SIZES = dict(layers=2, experts=4, intermediate=2880, vocabulary=32768, repeat=2, tokens=[256], stock_tokens=4096)


def write_models(options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Write a model of these sizes in MXFP4, and in bf16 for stock, which cannot train from MXFP4."""
    models = {"ours": folder / "mxfp4", "stock": folder / "bf16"}
    sizes = {"vocabulary": options.vocabulary, "intermediate": options.intermediate}
    write_random_model(models["ours"], layers=options.layers, experts=options.experts, **sizes)
    dequantize_checkpoint(models["ours"], models["stock"])
    return models


def run(options: argparse.Namespace, _: Copy) -> Result:
    if min(options.tokens) > options.stock_tokens:
        raise UserError("all --tokens are longer than --stock-tokens", "give one that stock computes, too")
    with tempfile.TemporaryDirectory(prefix="bench-step-") as scratch:
        models = write_models(options, Path(scratch))
        stock = str(copy_pristine(Path(scratch, "openrlhf")))
        lengths = {tokens: _ways(options, Path(scratch), models, stock, tokens) for tokens in sorted(options.tokens)}
    longest = max(tokens for tokens in lengths if tokens <= options.stock_tokens)
    last = lengths[longest]
    logits = 4 * longest * options.vocabulary
    saved = last["stock"]["peak_bytes"] - last["ours"]["peak_bytes"]
    details = {
        f"{name}_{tokens}_tokens_{unit}": report[key] / scale
        for tokens, reports in lengths.items()
        for name, report in reports.items()
        for key, unit, scale in (
            ("seconds", "s", 1),
            ("processor_seconds", "processor_s", 1),
            ("peak_bytes", "peak_gb", GB),
        )
    }
    for name in last:
        peaks = {tokens: reports[name]["peak_bytes"] for tokens, reports in lengths.items() if name in reports}
        if len(peaks) > 1:
            details[f"{name}_mb_per_token"] = _slope(peaks) / 1e6
    return Result(
        what=f"a training step on {longest} tokens, {options.layers} layers of {options.experts} experts, "
        f"{options.vocabulary} rows of vocabulary, gradient checkpointing",
        unit="s",
        stock=last["stock"]["seconds"],
        ours=last["ours"]["seconds"],
        details=details | {"fp32_logits_gb": logits / GB} | last["ours"]["differences"],
        extrapolation=(
            f"gpt-oss-120b, {TOKENS_120B} tokens a micro-batch: {saved / logits:.1f} times the fp32 logits less, "
            f"{saved / logits * 4 * TOKENS_120B * FULL.vocabulary / GB:.0f} GB of each GPU",
            "assumes one optimizer step a rollout, an entropy that is logged, and memory in proportion to the logits "
            f"of {FULL.vocabulary} rows; on a GPU stock runs all {FULL.experts} experts for the old log-probs, which a "
            "CPU does not do and this does not show",
        ),
    )


def _ways(options: argparse.Namespace, scratch: Path, models: dict[str, Path], stock: str, tokens: int) -> Reports:
    """Return the report of each way on this length; without stock's if it is too long for stock.

    Raises:
        RuntimeError: if their results differ.
    """
    ways: dict[str, dict[str, Any]] = {
        "stock": {"model": str(models["stock"]), "package": stock},
        "bf16": {"model": str(models["ours"]), "package": None, "experts": "bf16"},
        "ours": {"model": str(models["ours"]), "package": None, "experts": "packed"},
    }
    if tokens > options.stock_tokens:
        del ways["stock"]
    reports, gradients = {}, {}
    for name, way in ways.items():
        file = scratch / f"{name}.pt"
        job: dict[str, Any] = way | {
            "gradients": str(file), "lora_rank": 64,
            "vocabulary": options.vocabulary, "tokens": tokens, "repeat": options.repeat,
        }  # fmt: skip
        (reports[name],) = run_ranks("step_worker", 1, job)
        gradients[name] = torch.load(file)
    first, *others = ways
    expected = reports[first]
    for name in others:
        differences = {f"{kind}_difference": abs(expected[kind] - reports[name][kind]) for kind in ("loss", "entropy")}
        differences["gradient_difference"] = _difference(gradients[first], gradients[name])
        if max(differences.values()) > TOLERANCE:
            raise RuntimeError(f"{first} and {name} do not agree: {differences}")
        reports[name]["differences"] = differences
    return reports


def _slope(peaks: dict[int, int]) -> float:
    """Return by how many bytes a further token raises the peak, from the shortest length to the longest."""
    short, long = min(peaks), max(peaks)
    return (peaks[long] - peaks[short]) / (long - short)


def _difference(expected: dict[str, torch.Tensor], actual: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference over that of the expected gradients, over all tensors together."""
    if expected.keys() != actual.keys():
        raise RuntimeError("stock and ours train other parameters")
    error = sum((actual[name].float() - value.float()).square().sum() for name, value in expected.items())
    return float((error / sum(value.float().square().sum() for value in expected.values())) ** 0.5)
